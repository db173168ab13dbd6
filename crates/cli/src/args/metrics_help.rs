//! What `--help` tells of `overspill metrics`, beside its options.

/// Of `overspill metrics`.
pub const METRICS_ABOUT: &str = "\
Tell what running jobs do, as metrics for Prometheus

Prints the statistics of all your jobs, or of one, in the OpenMetrics text
format. With --listen it answers those who ask, at /metrics; with --textfile it
writes a file that node_exporter passes on.

  overspill metrics
  overspill metrics --pid 384
  overspill metrics --listen 127.0.0.1:9979
  overspill metrics --textfile /var/lib/node-exporter/overspill.prom 15";

/// The rest.
pub const METRICS_NOTES: &str = "\
Names begin with overspill_, sizes are in bytes and times in seconds, and what
only grows ends in _total. Labels:
  job      the process of the job's `overspill run`
  process  a process of the job
  device   a swap device, by its path
  tier     where pages are, or came from: resident, cache (the swap cache),
           compressed, same_filled, device, zero (new pages), place (pages that
           were there)

Sums of a job count on when a process of it ends, or executes another program.
A job that does not answer has the metric overspill_job_up with 0, and no other.

--listen answers in OpenMetrics where that is asked for, and else in the older
text format. Whoever has a process on this machine can ask at a port; a socket
is its user's and root's alone. The file of --textfile is in the older format,
as node_exporter reads it. It is written under another name and then renamed, so
that nobody reads half of it.

Both go on until a signal ends them; with --pid until the job ends, and the file
then has no job in it.

Exit status: 0 if it has printed, written or answered all that it should; 1 if
there is no such job, or it cannot listen or write there; 2 for a mistake on the
command line.

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";
