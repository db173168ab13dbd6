//! Numbers of the command line, each with a sentence that says what to give.

use std::ops::RangeInclusive;

/// The process that names a job.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid @ 1..) => Ok(pid),
        _ => Err("give the number of a process: `overspill top --once` lists jobs".to_owned()),
    }
}

/// A whole number of a range.
pub fn whole(range: RangeInclusive<u32>) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::definition;

    #[test]
    fn what_is_no_number_is_told_what_to_give() {
        assert_eq!((parse_pid("7"), whole(1..=9)("9")), (Ok(7), Ok(9)));
        for refused in ["0", "-1", "abc", "", "4294967296"] {
            assert!(
                parse_pid(refused).unwrap_err().contains("`overspill top --once`"),
                "{refused}"
            );
            assert_eq!(whole(1..=9)(refused).unwrap_err(), "give a whole number from 1 to 9");
        }
    }

    /// The words of the library of the parser tell nobody what to do.
    #[test]
    fn no_command_refuses_a_word_without_a_hint() {
        let mut seen = 0;
        for command in definition().get_subcommands() {
            for option in command.get_arguments().filter_map(|option| option.get_long()) {
                let words = ["overspill", command.get_name(), &format!("--{option}=abc")]
                    .map(str::to_owned);
                let Err(error) = definition().try_get_matches_from(words) else { continue };
                let said = error.to_string();
                assert!(
                    !said.contains("invalid digit"),
                    "{} --{option}: {said}",
                    command.get_name()
                );
                seen += usize::from(said.contains("give the number of a process"));
            }
        }
        assert_eq!(seen, 7, "commands that take --pid");
    }
}
