//! The queue of a run that several launches work on, `queue/`: one file per ticket, whose name is
//! its state.
//!
//! In: the trials that stay on one device. Out: tickets that are taken, given back and done by
//! renames within one folder. A rename has one winner and leaves no second name, on a local disk as
//! on NFS, Lustre and GPFS: safety needs neither a lock nor a clock. `docs/cluster-protocol.md` has
//! the rules.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use super::RunFolder;
use crate::{
    folder::{Folder, named},
    input::is_absent,
    patience::patiently,
    plan::TrialId,
};

/// Name of the folder.
pub const QUEUE: &str = "queue";
/// File in it that asks the workers to stop.
const STOP: &str = "stop";
/// Git commits nothing of it, whatever the `.gitignore` above says.
pub(super) const IGNORE: &str = ".gitignore";
/// File in it with the path of the folder in which the run was submitted.
const FROM: &str = "submitted-from";
/// Content of the file [`STOP`] if running trials are to be stopped too; it is empty if they may finish.
const NOW: &str = "now\n";
/// Largest ticket, in bytes: 100,000 trials.
const MOST_BYTES: u64 = 4 << 20;

/// The state of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketState {
    Open,
    /// The launch of this number works on it.
    Taken(u64),
    /// Nothing is left of it.
    Done,
    /// Nobody takes it: a trial of it was killed again and again, or is longer than its jobs.
    Held,
    /// Nobody asked for its trials yet: `--only` named others.
    Later,
}

impl fmt::Display for TicketState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => formatter.write_str("open"),
            Self::Taken(launch) => write!(formatter, "taken-{launch}"),
            Self::Done => formatter.write_str("done"),
            Self::Held => formatter.write_str("held"),
            Self::Later => formatter.write_str("later"),
        }
    }
}

/// A ticket, as a listing showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// From 1.
    pub number: u64,
    pub state: TicketState,
}

impl Ticket {
    fn name(self) -> OsString {
        format!("{:04}.{}", self.number, self.state).into()
    }

    /// `None` for other files.
    fn of_name(name: &OsStr) -> Option<Self> {
        let (number, state) = name.to_str()?.split_once('.')?;
        let state = match state {
            "open" => TicketState::Open,
            "done" => TicketState::Done,
            "held" => TicketState::Held,
            "later" => TicketState::Later,
            taken => TicketState::Taken(taken.strip_prefix("taken-")?.parse().ok()?),
        };
        let number = number.parse().ok()?;
        let ticket = Self { number, state };
        // Another spelling of the number would be another file.
        (ticket.name() == name).then_some(ticket)
    }
}

/// Numbers of tickets by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TicketCounts {
    pub open: usize,
    pub taken: usize,
    pub done: usize,
    pub held: usize,
    pub later: usize,
}

impl TicketCounts {
    /// Those that somebody works on, or may take.
    pub fn left(self) -> usize {
        self.open + self.taken
    }

    pub fn all(self) -> usize {
        self.left() + self.done + self.held + self.later
    }
}

/// One trial of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketEntry {
    pub trial: TrialId,
    /// Rows of attempts up to this one do not count: the trial was asked for again. 0 for all.
    pub after: u64,
}

/// The content of a ticket that was listed, as far as it is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketContent {
    /// Its trials; not empty.
    Whole(Vec<TicketEntry>),
    /// Nobody's: its trials get another ticket at the end. Why it is no ticket, with its path.
    Damaged(String),
    /// In another state by now, or the list was old.
    Moved,
}

/// A ticket that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTicket {
    /// Not empty.
    pub entries: Vec<TicketEntry>,
    pub state: TicketState,
}

impl NewTicket {
    pub fn open(entries: Vec<TicketEntry>) -> Self {
        Self {
            entries,
            state: TicketState::Open,
        }
    }
}

/// Whether the workers of a run shall stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopAsked {
    /// Running trials finish.
    Drain,
    /// Running trials are stopped.
    Now,
}

/// The queue of a run.
#[derive(Clone, Debug)]
pub struct TicketQueue {
    run: RunFolder,
}

impl TicketQueue {
    /// `None` if the run has no queue.
    ///
    /// # Errors
    /// It cannot be told whether it has one; the text names the folder.
    pub fn of(run: &RunFolder) -> io::Result<Option<Self>> {
        let path = run.path().join(QUEUE);
        match patiently(|| path.symlink_metadata()) {
            Ok(found) => Ok(found.is_dir().then(|| Self { run: run.clone() })),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(named(&path, error)),
        }
    }

    /// Creates the queue of a run with these tickets. It appears whole.
    ///
    /// # Errors
    /// It exists, or cannot be written.
    pub fn create(run: &RunFolder, tickets: &[NewTicket]) -> io::Result<Self> {
        let folder = run.open()?;
        let unborn = OsString::from(format!(".{QUEUE}.{}.new", std::process::id()));
        folder.remove(&unborn)?;
        folder.make_new_folder(&unborn)?;
        let filled = folder.folder(unborn.as_ref()).and_then(|inside| {
            for (number, ticket) in (1..).zip(tickets) {
                write_ticket(&inside, number, ticket)?;
            }
            inside
                .create(IGNORE.as_ref())
                .and_then(|mut file| io::Write::write_all(&mut file, b"*\n"))?;
            // One call for all of them: thousands of single ones would take minutes.
            inside.sync_everything()?;
            folder.rename(&unborn, QUEUE.as_ref())?;
            folder.sync()
        });
        filled.inspect_err(|_| {
            let _ = folder.remove(&unborn);
        })?;
        Ok(Self { run: run.clone() })
    }

    /// Adds tickets behind all others; returns their numbers.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn add(&self, tickets: &[NewTicket]) -> io::Result<Vec<u64>> {
        let folder = self.folder()?;
        let last = self.list()?.iter().map(|ticket| ticket.number).max();
        let mut number = last.unwrap_or(0);
        let mut added = Vec::with_capacity(tickets.len());
        for NewTicket { entries, state } in tickets {
            loop {
                number += 1;
                // Who makes this folder has the number: the list may be old, and others may add, too.
                // After a lost reply it stays unused.
                match folder.make_new_folder(OsStr::new(&format!(".{number}"))) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => break made?,
                }
            }
            let state = *state;
            let name = Ticket { number, state }.name();
            folder.write_among_others(&name, text(entries).as_bytes())?;
            added.push(number);
        }
        Ok(added)
    }

    /// The tickets, by number. On a shared folder the list may be a minute old.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn list(&self) -> io::Result<Vec<Ticket>> {
        let names = patiently(|| self.folder()?.names())?;
        let mut tickets: Vec<Ticket> = names
            .iter()
            .filter_map(|name| Ticket::of_name(name))
            .collect();
        tickets.sort_by_key(|ticket| ticket.number);
        Ok(tickets)
    }

    /// How many tickets are in each state.
    ///
    /// # Errors
    /// As [`TicketQueue::list`].
    pub fn counts(&self) -> io::Result<TicketCounts> {
        let mut counts = TicketCounts::default();
        for ticket in self.list()? {
            match ticket.state {
                TicketState::Open => counts.open += 1,
                TicketState::Taken(_) => counts.taken += 1,
                TicketState::Done => counts.done += 1,
                TicketState::Held => counts.held += 1,
                TicketState::Later => counts.later += 1,
            }
        }
        Ok(counts)
    }

    /// The trials of a ticket.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn content(&self, ticket: Ticket) -> io::Result<TicketContent> {
        use std::io::Read;
        let name = ticket.name();
        let mut bytes = Vec::new();
        let read = patiently(|| {
            bytes.clear();
            let file = self.folder()?.read(&name)?;
            file.take(MOST_BYTES).read_to_end(&mut bytes)
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(TicketContent::Moved);
            }
            read => read?,
        };
        let text = String::from_utf8(bytes).unwrap_or_default();
        let entry = |line: &str| {
            let (trial, after) = line.split_once(' ').unwrap_or((line, "0"));
            Some(TicketEntry {
                trial: TrialId(trial.to_owned()),
                after: after.parse().ok()?,
            })
        };
        let entries: Option<Vec<TicketEntry>> = text.lines().map(entry).collect();
        let whole = entries.filter(|entries| !entries.is_empty());
        Ok(whole.map_or_else(
            || {
                let path = self.run.path().join(QUEUE).join(&name);
                TicketContent::Damaged(format!("{}: this is not a ticket", path.display()))
            },
            TicketContent::Whole,
        ))
    }

    /// The trials of those of the `listed` tickets that are in this state; `None` if one of them no
    /// longer is. A damaged one has no trials.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn trials_of(
        &self,
        listed: &[Ticket],
        state: TicketState,
    ) -> io::Result<Option<BTreeSet<TrialId>>> {
        let mut trials = BTreeSet::new();
        for ticket in listed.iter().filter(|ticket| ticket.state == state) {
            match self.content(*ticket)? {
                TicketContent::Whole(entries) => {
                    trials.extend(entries.into_iter().map(|entry| entry.trial));
                }
                TicketContent::Damaged(_) => {}
                TicketContent::Moved => return Ok(None),
            }
        }
        Ok(Some(trials))
    }

    /// Replaces a ticket by others with its trials; returns whether this caller did. Meanwhile it is in
    /// the state `through`, in which nobody takes it. There it stays whole if somebody else divides it,
    /// or began to and was cut off. One who is cut off near the end leaves trials in two tickets.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn divide(
        &self,
        ticket: Ticket,
        through: TicketState,
        parts: &[NewTicket],
    ) -> io::Result<bool> {
        let Some(closed) = self.put(ticket, through)? else {
            return Ok(false);
        };
        if !self.may_divide(ticket)? {
            return Ok(false);
        }
        self.add(parts)?;
        self.put(closed, TicketState::Done)?;
        Ok(true)
    }

    /// Whether this caller is the one to divide a ticket: the one whose folder gets a name that only
    /// one can have. The name of the ticket does not tell who gave it, and the file in the folder does,
    /// also after a lost reply.
    fn may_divide(&self, ticket: Ticket) -> io::Result<bool> {
        let folder = self.folder()?;
        let own = format!("{:016x}", fastrand::u64(..));
        let draft = OsString::from(format!(".{}.{own}.new", ticket.number));
        let right = OsString::from(format!(".{}.divided", ticket.number));
        folder.make_new_folder(&draft)?;
        let named = folder
            .folder(draft.as_ref())
            .and_then(|inside| inside.create(own.as_ref()))
            .and_then(|_| folder.rename(&draft, &right));
        let is_own = folder
            .folder(right.as_ref())
            .and_then(|inside| inside.kind(own.as_ref()))
            .is_ok_and(|kind| kind.is_some());
        if !is_own {
            folder.remove(&draft)?;
            // It is another one's, or none could be made.
            return named.map(|()| false).or_else(|error| match error.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => Ok(false),
                _ => Err(error),
            });
        }
        Ok(true)
    }

    /// Moves a ticket to another state; `None` if it is no longer in the one that was listed.
    ///
    /// A file server may have renamed it and lost the reply; what is there under the new name, which
    /// only this caller gives, tells.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn put(&self, ticket: Ticket, state: TicketState) -> io::Result<Option<Ticket>> {
        let put = Ticket { state, ..ticket };
        let moved = patiently(|| {
            let folder = self.folder()?;
            match folder.rename(&ticket.name(), &put.name()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(folder.kind(&put.name())? == Some(FileType::RegularFile))
                }
                renamed => renamed.map(|()| true),
            }
        })?;
        Ok(moved.then_some(put))
    }

    /// Whether a ticket is in this state. A stale answer may be wrong either way.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn has(&self, ticket: Ticket) -> io::Result<bool> {
        patiently(|| Ok(self.folder()?.kind(&ticket.name())?.is_some()))
    }

    /// The folder in which the run was submitted: paths of the experiment are relative to it.
    pub fn submitted_from(&self) -> Option<PathBuf> {
        use std::{ffi::OsString, io::Read, os::unix::ffi::OsStringExt};
        let mut bytes = Vec::new();
        let file = self.folder().ok()?.read(FROM.as_ref()).ok()?;
        file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
        (!bytes.is_empty()).then(|| PathBuf::from(OsString::from_vec(bytes)))
    }

    /// Records that folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn submit_from(&self, folder: &Path) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        self.folder()?
            .write_among_others(FROM.as_ref(), folder.as_os_str().as_bytes())
    }

    /// Asks the workers to stop.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn ask_to_stop(&self, asked: StopAsked) -> io::Result<()> {
        let text = match asked {
            StopAsked::Drain => "",
            StopAsked::Now => NOW,
        };
        self.folder()?
            .write_among_others(STOP.as_ref(), text.as_bytes())
    }

    /// Lets the workers go on.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn go_on(&self) -> io::Result<()> {
        self.folder()?.remove(STOP.as_ref())
    }

    /// Whether they shall stop; `None` also if the folder cannot be read now.
    pub fn stop_asked(&self) -> Option<StopAsked> {
        use std::io::Read;
        let mut text = String::new();
        let file = self.folder().ok()?.read(STOP.as_ref()).ok()?;
        file.take(NOW.len() as u64).read_to_string(&mut text).ok()?;
        Some(match text.as_str() {
            NOW => StopAsked::Now,
            _ => StopAsked::Drain,
        })
    }

    /// Opened anew each time: a file server may forget an open folder.
    fn folder(&self) -> io::Result<Folder> {
        self.run.open()?.folder(QUEUE.as_ref())
    }
}

fn write_ticket(folder: &Folder, number: u64, ticket: &NewTicket) -> io::Result<()> {
    use std::io::Write;
    let name = Ticket {
        number,
        state: ticket.state,
    }
    .name();
    folder
        .create(&name)?
        .write_all(text(&ticket.entries).as_bytes())
}

fn text(entries: &[TicketEntry]) -> String {
    let line = |entry: &TicketEntry| match entry.after {
        0 => format!("{}\n", entry.trial),
        after => format!("{} {after}\n", entry.trial),
    };
    entries.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn entry(id: &str, after: u64) -> TicketEntry {
        TicketEntry {
            trial: TrialId(id.to_owned()),
            after,
        }
    }

    fn queue(folder: &tempfile::TempDir) -> TicketQueue {
        let run = RunFolder::at(folder.path());
        assert!(TicketQueue::of(&run).unwrap().is_none());
        let tickets = [vec![entry("a", 0), entry("b", 2)], vec![entry("c", 0)]];
        TicketQueue::create(&run, &tickets.map(NewTicket::open)).unwrap();
        TicketQueue::of(&run).unwrap().unwrap()
    }

    #[test]
    fn a_queue_that_cannot_be_looked_at_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let endless = folder.path().join("loop");
        std::os::unix::fs::symlink("loop", &endless).unwrap();
        let error = TicketQueue::of(&RunFolder::at(endless)).unwrap_err();
        assert!(error.to_string().contains("loop/queue: "), "{error}");
    }

    #[test]
    fn a_ticket_is_taken_by_one_and_its_name_tells_by_whom() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let listed = queue.list().unwrap();
        assert_eq!(listed.len(), 2);
        let mine = queue.put(listed[0], TicketState::Taken(7)).unwrap();
        let mine = mine.unwrap();
        assert_eq!(queue.put(listed[0], TicketState::Taken(8)).unwrap(), None);
        assert!(folder.path().join("queue/0001.taken-7").is_file());
        let whole = TicketContent::Whole(vec![entry("a", 0), entry("b", 2)]);
        assert_eq!(queue.content(mine).unwrap(), whole);
        // The reply of a rename was lost, and the same was asked again.
        assert_eq!(
            queue.put(listed[0], TicketState::Taken(7)).unwrap(),
            Some(mine)
        );
        let done = queue.put(mine, TicketState::Done).unwrap().unwrap();
        assert_eq!(queue.put(mine, TicketState::Open).unwrap(), None);
        assert!(queue.has(done).unwrap() && !queue.has(mine).unwrap());
        let added = queue.add(&[NewTicket::open(vec![entry("d", 1)])]).unwrap();
        assert_eq!(added, [3]);
        let states: Vec<TicketState> = queue.list().unwrap().iter().map(|at| at.state).collect();
        assert_eq!(
            states,
            [TicketState::Done, TicketState::Open, TicketState::Open]
        );
        // Somebody else adds one, and this list is older than that.
        fs::create_dir(folder.path().join(QUEUE).join(".4")).unwrap();
        let later = NewTicket {
            entries: vec![entry("f", 0)],
            state: TicketState::Later,
        };
        let added = queue
            .add(&[NewTicket::open(vec![entry("e", 0)]), later])
            .unwrap();
        assert_eq!(added, [5, 6]);
        let counts = queue.counts().unwrap();
        assert_eq!((counts.later, counts.left(), counts.all()), (1, 3, 5));
        let listed = queue.list().unwrap();
        let for_later = || queue.trials_of(&listed, TicketState::Later).unwrap();
        assert_eq!(for_later(), Some(BTreeSet::from([TrialId("f".to_owned())])));
        // Somebody opens it after it was listed: where its trials are is not known.
        let later = *listed.last().unwrap();
        queue.put(later, TicketState::Open).unwrap();
        assert_eq!(for_later(), None);
    }

    #[test]
    fn a_ticket_is_divided_once() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        let first = queue.list().unwrap()[0];
        let parts = || {
            let later = NewTicket {
                entries: vec![entry("b", 2)],
                state: TicketState::Later,
            };
            [NewTicket::open(vec![entry("a", 0)]), later]
        };
        assert!(queue.divide(first, TicketState::Later, &parts()).unwrap());
        // Another one with an old list, and one who meets it in between.
        assert!(!queue.divide(first, TicketState::Later, &parts()).unwrap());
        let done = Ticket {
            state: TicketState::Done,
            ..first
        };
        let between = queue.put(done, TicketState::Later).unwrap().unwrap();
        assert!(!queue.divide(between, TicketState::Later, &parts()).unwrap());
        let states: Vec<TicketState> = queue.list().unwrap().iter().map(|at| at.state).collect();
        let (open, later) = (TicketState::Open, TicketState::Later);
        assert_eq!(states, [later, open, open, later]);
    }

    #[test]
    fn other_files_are_no_tickets_and_a_damaged_ticket_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        for name in [
            "1.open",
            "notes",
            "0003.opened",
            "x.open",
            "0004.taken-",
            ".0005.open.new",
        ] {
            fs::write(folder.path().join("queue").join(name), "a\n").unwrap();
        }
        let listed = queue.list().unwrap();
        assert_eq!(listed.len(), 2);
        for damaged in ["", "a b c\n", "a x\n"] {
            fs::write(folder.path().join("queue/0002.open"), damaged).unwrap();
            let content = queue.content(listed[1]).unwrap();
            assert!(
                matches!(&content, TicketContent::Damaged(why) if why.ends_with("0002.open: this is not a ticket")),
                "{content:?}"
            );
        }
        fs::write(folder.path().join("queue/0002.open"), [0xff, 0xfe]).unwrap();
        let content = queue.content(listed[1]).unwrap();
        assert!(matches!(content, TicketContent::Damaged(_)), "{content:?}");
        fs::remove_file(folder.path().join("queue/0002.open")).unwrap();
        assert_eq!(queue.content(listed[1]).unwrap(), TicketContent::Moved);
    }

    #[test]
    fn workers_are_asked_to_stop_and_to_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let queue = queue(&folder);
        assert_eq!(queue.stop_asked(), None);
        queue.ask_to_stop(StopAsked::Drain).unwrap();
        assert_eq!(queue.stop_asked(), Some(StopAsked::Drain));
        queue.ask_to_stop(StopAsked::Now).unwrap();
        assert_eq!(queue.stop_asked(), Some(StopAsked::Now));
        queue.go_on().unwrap();
        assert_eq!(queue.stop_asked(), None);
        assert_eq!(queue.list().unwrap().len(), 2);
    }
}
