//! `overspill top`: running jobs in the terminal, as they go on, and changes of them.
//!
//! [`watched`] is a job over the last minutes, [`app`] what is shown of them and what keys do,
//! [`screen`] draws it with [`bars`]. The figures are those of `overspill stat`, asked for on a
//! thread of their own, since a job that is stopped does not answer for seconds
//! ([`control::look`]). What is done to a job is what `overspill set`, `reclaim` and `swapoff` do,
//! on threads as well.

mod app;
mod bars;
mod screen;
mod watched;

use super::{reclaim, set, swapoff};
use crate::args::TopArgs;
use crate::control;
use crate::control::look::{Look, Source};
use crate::failure::Failure;
use crate::signals::asked_to_end;
use app::{Action, App, Effect, Key};
use bars::Marks;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, poll};
use screen::Theme;
use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{process, thread};

/// Longest time until what jobs say is drawn, or a signal is heard.
const PAUSE: Duration = Duration::from_millis(100);
/// Seconds between two looks at the jobs, if none are named.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a budget may take until it is said that it is not kept yet.
const BUDGET_TIME: Duration = Duration::from_secs(5);
/// How long pages are taken out of memory before that is given up.
const RECLAIM_TIME: Duration = Duration::from_secs(60);
/// Columns where there is no terminal.
const COLUMNS: usize = 80;

/// What other threads have to tell.
enum News {
    /// What the jobs say.
    Looks(Vec<(u32, Result<Look, Failure>)>),
    /// How something went that was done to a job.
    Done(String),
    /// There is nothing more to be watched.
    Over,
}

/// Runs the subcommand; returns the exit status.
pub fn run(args: &TopArgs) -> Result<u8, Failure> {
    let source = Source::of(args.pid)?;
    let mut app = App { only: args.pid.is_some(), ..App::default() };
    let marks = Marks::of_locale(|name| env::var(name).ok());
    if args.once {
        app.update(source.looks());
        if app.only && app.jobs.is_empty() {
            return Err(Failure::failed("the job has ended meanwhile"));
        }
        app.opened = app.marked.filter(|_| app.only);
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let columns = size.map_or(COLUMNS, |size| usize::from(size.ws_col)).max(COLUMNS);
        // A closed standard output is no reason to fail.
        let _ = io::stdout().write_all(screen::text(&app, marks, columns).as_bytes());
        return Ok(0);
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::usage(
            "there is no terminal to draw on and to read keys from: use --once, or `overspill \
             stat`",
        ));
    }
    let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let theme = Theme { colours, marks };
    let ended =
        asked_to_end().map_err(|error| Failure::own(format!("cannot catch signals: {error}")))?;
    let no_terminal =
        |error: io::Error| Failure::own(format!("cannot use this terminal ({error}): use --once"));
    let (sender, receiver) = mpsc::channel();
    watch(source, args.interval.unwrap_or(INTERVAL), sender.clone());
    let mut terminal = ratatui::try_init().map_err(no_terminal)?;
    end_with_terminal();
    let live = Live { app, theme, sender, receiver };
    let shown = live.show(&mut terminal, &ended);
    ratatui::restore();
    shown.map(|()| 0).map_err(no_terminal)
}

/// Ends the command when its terminal is gone: whoever waits for keys there would look for them
/// without a pause (crossterm takes the end of its input for nothing).
fn end_with_terminal() {
    thread::spawn(|| {
        let stdin = io::stdin();
        // Asked for nothing, it tells of the end alone.
        let mut wait = [PollFd::new(&stdin, PollFlags::empty())];
        while poll(&mut wait, None).is_err() {}
        process::exit(1);
    });
}

/// Has jobs looked at again and again.
fn watch(source: Source, interval: Duration, sender: Sender<News>) {
    thread::spawn(move || {
        let began = Instant::now();
        for round in 1u32.. {
            let looks = source.looks();
            let over = looks.is_empty() && source.is_over();
            if sender.send(News::Looks(looks)).is_err() || over && sender.send(News::Over).is_ok() {
                return;
            }
            // On time, however long the jobs took to answer.
            thread::sleep((interval * round).saturating_sub(began.elapsed()));
        }
    });
}

/// What is on the terminal.
struct Live {
    app: App,
    theme: Theme,
    sender: Sender<News>,
    receiver: Receiver<News>,
}

impl Live {
    /// Until somebody ends it.
    fn show(mut self, terminal: &mut DefaultTerminal, ended: &AtomicBool) -> io::Result<()> {
        let mut changed = true;
        while !ended.load(Relaxed) {
            if std::mem::take(&mut changed) {
                terminal.draw(|frame| screen::draw(frame, &self.app, self.theme))?;
            }
            while let Ok(news) = self.receiver.try_recv() {
                changed = true;
                match news {
                    News::Looks(looks) => self.take_in(looks),
                    News::Done(sentence) => self.app.message = sentence,
                    News::Over => return Ok(()),
                }
            }
            match event::poll(PAUSE) {
                Ok(false) => continue,
                // A signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => drop(other?),
            }
            changed = true;
            if let Event::Key(pressed) = event::read()?
                && let Some(key) = key(pressed)
            {
                match self.app.key(key) {
                    Effect::Nothing => {}
                    Effect::Quit => break,
                    Effect::Do(job, action) => self.act(job, action),
                }
            }
        }
        Ok(())
    }

    fn take_in(&mut self, looks: Vec<(u32, Result<Look, Failure>)>) {
        self.app.update(looks);
        if self.app.only {
            self.app.opened = self.app.marked;
        }
    }

    /// Has something done to a job.
    fn act(&mut self, job: u32, action: Action) {
        self.app.message = match &action {
            Action::Budget(memory) => format!("job {job} gets a budget of {memory} ..."),
            Action::Reclaim(size) => format!("{size} of job {job} are taken out of memory ..."),
            Action::Swapoff(_, path) => format!("{path} is taken out of use ..."),
        };
        let sender = self.sender.clone();
        thread::spawn(move || {
            let sentence = done(job, action).unwrap_or_else(|failure| failure.sentence);
            // Nobody listens any more once the screen is gone.
            let _ = sender.send(News::Done(sentence));
        });
    }
}

/// Does something to a job; how it went.
fn done(job: u32, action: Action) -> Result<String, Failure> {
    let found = control::find(job)?;
    match action {
        Action::Budget(memory) => {
            let mut warnings = String::new();
            let warn = |warning: &str| warnings = format!("; {warning}");
            let (summary, shortfall) = set::apply(&found, memory, BUDGET_TIME, warn)?;
            Ok(shortfall.unwrap_or(summary) + &warnings)
        }
        Action::Reclaim(size) => {
            let (summary, shortfall) = reclaim::apply(&found, size, RECLAIM_TIME)?;
            Ok(shortfall.map_or(summary.clone(), |why| format!("{summary}: {why}")))
        }
        Action::Swapoff(name, path) => match swapoff::take_out(&found, name, |_| false)? {
            None => Ok("the job has ended meanwhile".to_owned()),
            Some(now) => {
                let (_, sentence) = swapoff::told(&now, &path);
                Ok(sentence.unwrap_or_else(|| format!("{path} is out of use")))
            }
        },
    }
}

/// A key that means something.
fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        return (pressed.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match pressed.code {
        KeyCode::Char(letter) => Key::Letter(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        let pressed = |code, modifiers| key(KeyEvent::new(code, modifiers));
        let plain = KeyModifiers::NONE;
        assert_eq!(pressed(KeyCode::Char('M'), KeyModifiers::SHIFT), Some(Key::Letter('M')));
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Interrupt));
        assert_eq!(pressed(KeyCode::Char('q'), KeyModifiers::CONTROL), None);
        assert_eq!(pressed(KeyCode::Esc, plain), Some(Key::Escape));
        assert_eq!(pressed(KeyCode::F(1), plain), None);
    }
}
