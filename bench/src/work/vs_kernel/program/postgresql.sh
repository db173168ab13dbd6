# Starts a server on a database, has it sort, and ends it.
#
# usage: postgresql.sh DIRECTORY
cd "$1" || exit
postgres -D data -k "$1" -c listen_addresses= -c fsync=off -c shared_buffers=16MB >log 2>&1 &
server=$!
until psql -h "$1" -qAtX -c 'select 1' postgres >/dev/null 2>&1; do
    kill -0 $server || exit
    sleep 0.05
done
psql -h "$1" -qAtX -v ON_ERROR_STOP=1 -f sort.sql postgres
status=$?
kill -INT $server
wait $server
exit $status
