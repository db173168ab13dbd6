
# What follows -- is a command line of its own, for those subcommands that run one.
_overspill_command() {
    local i
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[1]} == @(SUBCOMMANDS) && ${COMP_WORDS[i]} == -- ]]; then
            if declare -F _comp_command_offset >/dev/null; then
                _comp_command_offset $((i + 1))
            elif declare -F _command_offset >/dev/null; then
                _command_offset $((i + 1))
            elif ((COMP_CWORD == i + 1)); then
                mapfile -t COMPREPLY < <(compgen -c -- "$2")
            else
                COMPREPLY=()
            fi
            return
        fi
    done
    _overspill "$@"
}
complete -F _overspill_command -o bashdefault -o default overspill
