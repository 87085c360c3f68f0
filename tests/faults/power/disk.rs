//! A file system of inodes and changes: which of them are certain after a cut, and the folder that
//! remains of any choice of the others.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::interposer::{Kind, Record};

type Id = usize;
const ROOT: Id = 0;
/// The unit in which a disk writes.
const SECTOR: usize = 512;
/// The unit in which the system writes files.
const PAGE: u64 = 4096;

/// Fate of a change that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Kept,
    Lost,
    /// Only so many bytes of a write.
    Torn(usize),
    /// The file has its new length, and zero bytes instead of the write.
    Zeroed,
}

/// One part of a change.
#[derive(Clone, Debug)]
enum Part {
    Data {
        inode: Id,
        offset: u64,
        bytes: Vec<u8>,
    },
    Length {
        inode: Id,
        bytes: u64,
    },
    Entry {
        folder: Id,
        name: String,
        inode: Option<Id>,
    },
}

/// A change that happens whole, or not at all.
#[derive(Clone, Debug)]
struct Change {
    /// Number of the record that made it.
    born: usize,
    /// Number of the record that synced it.
    durable: usize,
    parts: Vec<Part>,
    words: String,
}

#[derive(Clone, Debug)]
enum Inode {
    File,
    Folder,
    Link(String),
}

/// A recording as changes.
pub(crate) struct Disk {
    inodes: Vec<Inode>,
    changes: Vec<Change>,
    /// Numbers of the records that sync.
    syncs: Vec<usize>,
}

/// What the recording has made so far, to resolve paths.
struct Live<'a> {
    disk: &'a mut Disk,
    by_number: HashMap<u64, Id>,
    entries: BTreeMap<(Id, String), Id>,
    /// The path of the root.
    root: PathBuf,
}

impl Disk {
    /// Records are of paths below one folder, which was empty but for the experiment.
    pub(crate) fn of(records: &[Record]) -> Self {
        let mut disk = Self {
            inodes: vec![Inode::Folder],
            changes: Vec::new(),
            syncs: Vec::new(),
        };
        let root = records
            .iter()
            .filter_map(|record| record.path.split_once("/work/"))
            .map(|(before, _)| PathBuf::from(format!("{before}/work")))
            .next()
            .unwrap();
        let mut live = Live {
            disk: &mut disk,
            by_number: HashMap::new(),
            entries: BTreeMap::new(),
            root,
        };
        for (number, record) in records.iter().enumerate() {
            live.take(number, record);
        }
        disk
    }

    /// The changes that are not certain after the first `end` records.
    pub(crate) fn pending(&self, end: usize) -> Vec<usize> {
        let is_pending = |change: &Change| change.born < end && change.durable >= end;
        (0..self.changes.len())
            .filter(|place| is_pending(&self.changes[*place]))
            .collect()
    }

    /// Whether a change is of the content of a file, and of no name.
    pub(crate) fn is_of_content(&self, change: usize) -> bool {
        let is_entry = |part: &Part| matches!(part, Part::Entry { .. });
        !self.changes[change].parts.iter().any(is_entry)
    }

    /// The ways in which a write can be torn.
    pub(crate) fn torn(&self, change: usize) -> Vec<Fate> {
        let [Part::Data { bytes, .. }] = self.changes[change].parts.as_slice() else {
            return Vec::new();
        };
        let length = bytes.len();
        let mut fates = vec![Fate::Zeroed];
        let sector = length / 2 / SECTOR * SECTOR;
        for kept in [1, length / 3, length - 1, sector] {
            let fate = Fate::Torn(kept);
            if kept > 0 && kept < length && !fates.contains(&fate) {
                fates.push(fate);
            }
        }
        fates
    }

    pub(crate) fn words(&self, change: usize, fate: Fate) -> String {
        let words = &self.changes[change].words;
        match fate {
            Fate::Kept | Fate::Lost => words.clone(),
            Fate::Torn(kept) => format!("{words} beyond {kept} bytes"),
            Fate::Zeroed => format!("{words} (zeros)"),
        }
    }

    /// Whether a file system could show this that keeps changes of folders in order, and writes all
    /// earlier ones at a sync.
    pub(crate) fn is_journal(&self, end: usize, pending: &[usize], fates: &[Fate]) -> bool {
        if self.splits_a_page(pending, fates) {
            return false;
        }
        let synced = self.syncs.iter().filter(|sync| **sync < end).max();
        let mut is_lost = false;
        for (change, fate) in pending.iter().zip(fates) {
            let change = &self.changes[*change];
            if !change
                .parts
                .iter()
                .any(|part| matches!(part, Part::Entry { .. }))
            {
                continue;
            }
            match fate {
                Fate::Lost if synced.is_some_and(|sync| change.born < *sync) => return false,
                Fate::Lost => is_lost = true,
                _ if is_lost => return false,
                _ => {}
            }
        }
        true
    }

    /// Whether a write is lost although a later one to the same page is kept: pages are written
    /// whole.
    fn splits_a_page(&self, pending: &[usize], fates: &[Fate]) -> bool {
        let mut lost: Vec<(Id, std::ops::RangeInclusive<u64>)> = Vec::new();
        for (change, fate) in pending.iter().zip(fates) {
            for part in &self.changes[*change].parts {
                let Part::Data {
                    inode,
                    offset,
                    bytes,
                } = part
                else {
                    continue;
                };
                let pages = offset / PAGE..=(offset + bytes.len() as u64) / PAGE;
                if *fate != Fate::Kept {
                    lost.push((*inode, pages));
                } else if lost.iter().any(|(file, gone)| {
                    file == inode && gone.end() >= pages.start() && gone.start() <= pages.end()
                }) {
                    return true;
                }
            }
        }
        false
    }

    /// The folder after a cut.
    pub(crate) fn image(&self, end: usize, pending: &[usize], fates: &[Fate]) -> Image {
        let chosen: HashMap<usize, Fate> =
            pending.iter().copied().zip(fates.iter().copied()).collect();
        let mut data: HashMap<Id, Vec<u8>> = HashMap::new();
        let mut entries: BTreeMap<(Id, String), Id> = BTreeMap::new();
        for (place, change) in self.changes.iter().enumerate() {
            let fate = chosen.get(&place).copied().unwrap_or(Fate::Kept);
            if change.born < end && fate != Fate::Lost {
                change
                    .parts
                    .iter()
                    .for_each(|part| apply(part, fate, &mut data, &mut entries));
            }
        }
        let mut image = Image::default();
        self.collect(ROOT, &mut PathBuf::new(), &data, &entries, &mut image);
        image
    }

    fn collect(
        &self,
        folder: Id,
        path: &mut PathBuf,
        data: &HashMap<Id, Vec<u8>>,
        entries: &BTreeMap<(Id, String), Id>,
        image: &mut Image,
    ) {
        for ((_, name), inode) in
            entries.range((folder, String::new())..(folder + 1, String::new()))
        {
            path.push(name);
            match &self.inodes[*inode] {
                Inode::File => {
                    let bytes = data.get(inode).cloned().unwrap_or_default();
                    image.0.insert(path.clone(), Node::File(bytes));
                }
                Inode::Link(target) => {
                    image.0.insert(path.clone(), Node::Link(target.clone()));
                }
                Inode::Folder => {
                    image.0.insert(path.clone(), Node::Folder);
                    self.collect(*inode, path, data, entries, image);
                }
            }
            path.pop();
        }
    }
}

fn apply(
    part: &Part,
    fate: Fate,
    data: &mut HashMap<Id, Vec<u8>>,
    entries: &mut BTreeMap<(Id, String), Id>,
) {
    match part {
        Part::Data {
            inode,
            offset,
            bytes,
        } => {
            let kept = match fate {
                Fate::Torn(kept) => bytes[..kept].to_vec(),
                Fate::Zeroed => vec![0; bytes.len()],
                _ => bytes.clone(),
            };
            let (file, offset) = (data.entry(*inode).or_default(), *offset as usize);
            file.resize(file.len().max(offset + kept.len()), 0);
            file[offset..offset + kept.len()].copy_from_slice(&kept);
        }
        Part::Length { inode, bytes } => data.entry(*inode).or_default().resize(*bytes as usize, 0),
        Part::Entry {
            folder,
            name,
            inode,
        } => {
            let key = (*folder, name.clone());
            match inode {
                Some(inode) => entries.insert(key, *inode),
                None => entries.remove(&key),
            };
        }
    }
}

impl Live<'_> {
    fn take(&mut self, number: usize, record: &Record) {
        let words = format!(
            "{} {}{}",
            record.kind.name(),
            short(&record.path, &self.root),
            if record.other.is_empty() {
                String::new()
            } else {
                format!(" to {}", short(&record.other, &self.root))
            }
        );
        match record.kind {
            Kind::Say | Kind::Call => {}
            Kind::Sync => self.sync(number, record),
            Kind::Write => {
                let inode = self.file(record);
                let bytes = record.data.clone();
                self.add(
                    number,
                    words,
                    vec![Part::Data {
                        inode,
                        offset: record.offset,
                        bytes,
                    }],
                );
            }
            Kind::Truncate => {
                let inode = self.file(record);
                self.add(
                    number,
                    words,
                    vec![Part::Length {
                        inode,
                        bytes: record.offset,
                    }],
                );
            }
            Kind::Open if record.flags == 2 => {
                let inode = self.file(record);
                self.add(number, words, vec![Part::Length { inode, bytes: 0 }]);
            }
            Kind::Open => self.make(number, words, record, Inode::File),
            Kind::MakeFolder => self.make(number, words, record, Inode::Folder),
            Kind::Symlink => {
                let target = String::from_utf8_lossy(&record.data).into_owned();
                self.make(number, words, record, Inode::Link(target));
            }
            Kind::Unlink | Kind::RemoveFolder => {
                let part = self.entry(&record.path, None);
                self.add(number, words, vec![part]);
            }
            Kind::Rename => {
                let inode = self.resolve(&record.path).unwrap();
                let parts = vec![
                    self.entry(&record.path, None),
                    self.entry(&record.other, Some(inode)),
                ];
                self.add(number, words, parts);
            }
            Kind::Link => {
                let inode = self.resolve(&record.path).unwrap();
                let part = self.entry(&record.other, Some(inode));
                self.add(number, words, vec![part]);
            }
        }
    }

    fn add(&mut self, born: usize, words: String, parts: Vec<Part>) {
        for part in &parts {
            if let Part::Entry {
                folder,
                name,
                inode,
            } = part
            {
                let key = (*folder, name.clone());
                match inode {
                    Some(inode) => self.entries.insert(key, *inode),
                    None => self.entries.remove(&key),
                };
            }
        }
        self.disk.changes.push(Change {
            born,
            durable: usize::MAX,
            parts,
            words,
        });
    }

    fn make(&mut self, number: usize, words: String, record: &Record, inode: Inode) {
        let id = self.new_inode(record.inode, inode);
        let part = self.entry(&record.path, Some(id));
        self.add(number, words, vec![part]);
    }

    fn new_inode(&mut self, number: u64, inode: Inode) -> Id {
        self.disk.inodes.push(inode);
        let id = self.disk.inodes.len() - 1;
        self.by_number.insert(number, id);
        id
    }

    /// The file of a write, which may have been renamed or removed since it was opened.
    fn file(&mut self, record: &Record) -> Id {
        match self.by_number.get(&record.inode) {
            Some(id) => *id,
            None => self.new_inode(record.inode, Inode::File),
        }
    }

    fn sync(&mut self, number: usize, record: &Record) {
        self.disk.syncs.push(number);
        let known = self.by_number.get(&record.inode).copied();
        let Some(id) = known.or_else(|| self.resolve(&record.path)) else {
            return;
        };
        for change in &mut self.disk.changes {
            let is_covered = change.parts.iter().any(|part| match part {
                Part::Data { inode, .. } | Part::Length { inode, .. } => *inode == id,
                Part::Entry { folder, .. } => *folder == id,
            });
            if is_covered && change.durable == usize::MAX {
                change.durable = number;
            }
        }
    }

    fn entry(&mut self, path: &str, inode: Option<Id>) -> Part {
        let path = Path::new(path);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let folder = self.resolve(&path.parent().unwrap().to_string_lossy());
        Part::Entry {
            folder: folder.unwrap_or_else(|| panic!("{} was made unseen", path.display())),
            name,
            inode,
        }
    }

    fn resolve(&self, path: &str) -> Option<Id> {
        let relative = Path::new(path).strip_prefix(&self.root).ok()?;
        let mut at = ROOT;
        for part in relative {
            at = *self
                .entries
                .get(&(at, part.to_string_lossy().into_owned()))?;
        }
        Some(at)
    }
}

/// A path below the root without what is the same in every run.
fn short(path: &str, root: &Path) -> String {
    Path::new(path)
        .strip_prefix(root)
        .map_or(path.to_owned(), |path| path.display().to_string())
}

#[derive(Clone, Debug)]
enum Node {
    File(Vec<u8>),
    Folder,
    Link(String),
}

/// A folder's content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image(BTreeMap<PathBuf, Node>);

impl Image {
    /// Equal for equal images.
    pub(crate) fn sum(&self) -> Vec<u8> {
        let mut sum = Sha256::new();
        for (path, node) in &self.0 {
            sum.update(path.to_string_lossy().as_bytes());
            match node {
                Node::File(bytes) => {
                    sum.update(b"\0file");
                    sum.update(bytes);
                }
                Node::Folder => sum.update(b"\0folder"),
                Node::Link(target) => sum.update(format!("\0link{target}")),
            }
        }
        sum.finalize().to_vec()
    }

    pub(crate) fn write(&self, folder: &Path) {
        for (path, node) in &self.0 {
            let path = folder.join(path);
            match node {
                Node::File(bytes) => fs::write(path, bytes).unwrap(),
                Node::Folder => fs::create_dir(path).unwrap(),
                Node::Link(target) => symlink(target, path).unwrap(),
            }
        }
    }
}
