
# What follows -- is a command line of its own, for those subcommands that run one.
function __overspill_command
    set -l words (commandline -opc)
    contains -- "$words[2]" SUBCOMMANDS; and contains -i -- -- $words
end

function __overspill_complete_command
    set -l first (math (__overspill_command) + 1)
    set -l words (commandline -opc)
    complete -C (string join ' ' -- (string escape -- $words[$first..]) (commandline -ct))
end

complete -c overspill -n __overspill_command -f -a '(__overspill_complete_command)'
