"""Databases and web servers, each with a real client that runs outside: PostgreSQL, MariaDB, redis,
nginx, Apache."""

import hashlib
import http.client
import signal
import socket

from case import Case, check
from resp import Client

ROWS = 300_000

POSTGRES_SQL = f"""
create table t (a integer primary key, b text, c integer);
insert into t select i, 'row ' || i::bigint * 7919 % 1000003, i % 977
  from generate_series(1, {ROWS}) i;
set work_mem = '256MB';
set maintenance_work_mem = '128MB';
create index on t (b);
analyze t;
select md5(string_agg(b, ',' order by b collate "C" desc)) from t;
select c, count(*), sum(length(b)) from t group by c order by 2 desc, c limit 3;
update t set b = b || 'x' where c < 300;
select count(*), count(distinct l.b) from t l join t r on l.a = r.a + 1 where r.c > 5;
"""

MARIADB_SQL = f"""
set sort_buffer_size = 100000000, max_heap_table_size = 200000000, tmp_table_size = 200000000;
create database d; use d;
create table t (a integer primary key, b varchar(40), c integer) engine = InnoDB;
insert into t select seq, concat('row ', seq * 7919 % 1000003), seq % 977 from seq_1_to_{ROWS};
alter table t add index (b);
select count(*), md5(group_concat(b order by b desc limit 1000)) from t;
select c, count(*), sum(length(b)) from t group by c order by 2 desc, c limit 3;
create table m engine = MEMORY as select * from t;
select count(*), count(distinct b) from m where b > 'row 3';
"""


def make_postgres(folder):
    folder.run(
        "chmod 777 . && setpriv --reuid postgres --regid postgres --clear-groups initdb -D data -A "
        "trust -U postgres -N >log"
    )


def copy_postgres(folder):
    folder.run("cp -a input/data . && chmod 700 data")


def ask_postgres(server):
    psql = [
        "psql", "-h", server.folder, "-U", "postgres", "-qAt", "-v", "ON_ERROR_STOP=1", "-d",
        "postgres",
    ]
    server.until(lambda: _answers(server, ["pg_isready", "-q", "-h", server.folder]), "it answered")
    output = server.client(psql, POSTGRES_SQL.encode())
    server.client(
        ["pgbench", "-h", server.folder, "-U", "postgres", "-i", "-q", "-s", "2", "postgres"]
    )
    server.client(
        [
            "pgbench", "-h", server.folder, "-U", "postgres", "-c", "4", "-j", "2", "-t", "100",
            "postgres",
        ]
    )
    output += server.client(
        psql,
        b"select count(*), sum(delta) = (select sum(tbalance) from pgbench_tellers) from "
        b"pgbench_history;",
    )
    server.stop(signal.SIGINT)  # ends its connections
    return output


def _answers(server, command):
    try:
        server.client(command)
        return True
    except Exception:
        return False


def make_mariadb(folder):
    folder.run(
        "mariadb-install-db --no-defaults --user=mysql --datadir=$PWD/data --skip-test-db "
        "--auth-root-authentication-method=normal >log"
    )


def copy_mariadb(folder):
    folder.run("chmod 755 . && cp -a input/data . && chown mysql: .")


def ask_mariadb(server):
    client = ["mariadb", "--no-defaults", "-u", "root", "-S", server.file("socket"), "-N"]
    server.until(lambda: _answers(server, [*client, "-e", "select 1"]), "it answered")
    output = server.client(client, MARIADB_SQL.encode())
    server.stop()
    return output


def redis_value(number, version):
    seed = b"%d %d " % (number, version)
    return seed + hashlib.shake_128(seed).digest(1000) + seed * 120


def ask_redis(count):
    def session(server):
        client = server.until(
            lambda: Client(server.file("socket"), server.tree.limit), "it answered"
        )
        sums = hashlib.sha256()
        with client:
            for first in range(0, count, 50):
                client.pipeline(
                    [("SET", f"k{n}", redis_value(n, 0)) for n in range(first, first + 50)]
                )
            for save in (1, 2):
                client.call("BGSAVE")
                for n in range(0, count, 7):
                    client.call("SET", f"k{n}", redis_value(n, save))
                server.until(
                    lambda: b"rdb_bgsave_in_progress:0" in client.call("INFO", "persistence"),
                    "it had saved",
                )
                check(
                    b"rdb_last_bgsave_status:ok" in client.call("INFO", "persistence"),
                    f"background save {save} failed",
                )
            for n in range(count):
                sums.update(client.call("GET", f"k{n}"))
            output = b"%d %s\n" % (client.call("DBSIZE"), sums.hexdigest().encode())
        server.client(
            [
                "redis-benchmark", "-s", server.file("socket"), "-n", "5000", "-q", "-t",
                "lpush,lrange_100,zadd",
            ]
        )
        server.stop()
        return output

    return session


REDIS = [
    "redis-server",
    "--port",
    "0",
    "--unixsocket",
    "socket",
    "--save",
    "",
    "--appendonly",
    "no",
    "--loglevel",
    "warning",
]

NGINX = """
daemon off; worker_processes 2; user www-data; pid pid; error_log errors;
events { worker_connections 64; }
http { access_log access; client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  gzip on; gzip_types *; gzip_min_length 1; gzip_buffers 2000 4k;
  server { listen unix:socket; root files; } }
"""

APACHE = """
ServerRoot {folder}
ServerName localhost
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule deflate_module /usr/lib/apache2/modules/mod_deflate.so
LoadModule filter_module /usr/lib/apache2/modules/mod_filter.so
User www-data
Group www-data
Listen 127.0.0.1:{port}
PidFile pid
ErrorLog errors
StartServers 2
MinSpareServers 1
MaxRequestWorkers 4
Mutex file:{folder}
SetOutputFilter DEFLATE
DocumentRoot {folder}/files
"""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def web_files(folder):
    folder.run(
        "mkdir -p files && for i in 1 2 3 4; do seq $i 17 $((i * 200000)) >files/$i.txt; done"
    )


def nginx_folder(folder):
    web_files(folder)
    folder.run("chmod 777 . && mkdir -p logs")


def apache_folder(folder):
    web_files(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.write("port", str(port))
    folder.write("apache.conf", APACHE.format(folder=folder.path, port=port))


def connect_apache(server):
    with open(server.file("port")) as file:
        return http.client.HTTPConnection("127.0.0.1", int(file.read()), timeout=server.tree.limit)


def connect_nginx(server):
    return UnixConnection(server.file("socket"), server.tree.limit)


def _get(connection, path):
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    return answer.status, hashlib.sha256(answer.read()).hexdigest()


def ask_web(connect):
    """Fetches files and one that is not there, many times; gives the sums."""

    def session(server):
        def first_answer():
            connection = connect(server)
            _get(connection, "/1.txt")
            return connection

        server.until(first_answer, "it answered").close()
        answers = []
        for _ in range(25):
            connection = connect(server)
            answers += [_get(connection, path) for path in ("/1.txt", "/2.txt", "/3.txt", "/4.txt")]
            connection.close()
        server.stop()
        return repr(sorted(set(answers))).encode()

    return session


CASES = [
    Case(
        "postgresql",
        [
            "postgres", "-D", "data", "-c", "listen_addresses=", "-c", "unix_socket_directories=..",
            # Shared memory is not managed: with its default, 128 MiB, it alone fills the budget.
            "-c", "fsync=off", "-c", "shared_buffers=16MB",
        ],
        needs=("psql", "pgbench", "initdb"),
        prepare=make_postgres,
        setup=copy_postgres,
        session=ask_postgres,
        user="postgres",
    ),
    Case(
        "mariadb",
        "exec mariadbd --no-defaults --user=mysql --datadir=$PWD/data --socket=$PWD/socket "
        "--pid-file=$PWD/pid "
        "--skip-networking --innodb-buffer-pool-size=96M --innodb-use-native-aio=0",
        needs=("mariadbd", "mariadb", "mariadb-install-db"),
        prepare=make_mariadb,
        setup=copy_mariadb,
        session=ask_mariadb,
    ),
    # The proof has a quick one.
    Case("redis", REDIS, needs=("redis-benchmark",), session=ask_redis(30_000)),
    Case(
        "nginx",
        ["nginx", "-p", ".", "-c", "input/nginx.conf", "-e", "errors"],
        quick=True,
        files={"nginx.conf": NGINX},
        setup=nginx_folder,
        session=ask_web(connect_nginx),
    ),
    Case(
        "apache-prefork",
        "exec apache2 -f $PWD/apache.conf -DFOREGROUND",
        quick=True,
        needs=("apache2",),
        setup=apache_folder,
        session=ask_web(connect_apache),
    ),
]
