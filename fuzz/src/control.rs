//! Reads any bytes as a request to a job, and as its answer. What is read is written and read back
//! as it was; what is refused, with one sentence.

use overspill_cli::protocol::{self, Reply};

/// The target.
pub fn run(bytes: &[u8]) {
    match protocol::parse(bytes) {
        Ok(call) => assert_eq!(protocol::parse(&protocol::line(&call)), Ok(call)),
        Err(sentence) => assert!(!sentence.is_empty() && !sentence.contains('\n')),
    }
    let Ok(answer) = protocol::parse_answer(bytes) else { return };
    let again = protocol::parse_answer(&protocol::line(&answer)).expect("it is an answer");
    assert_eq!(again, answer);
    match answer.reply {
        Reply::Budget(budget) => drop(budget.is_reached()),
        Reply::Stats(stats) => {
            let latency = stats.latency();
            let _ = (latency.since(&latency).all().total_ns(), stats.pressure().to_string());
        }
        _ => {}
    }
}
