//! The snapshots of all launches as one table: of a node's first launch all fields, of its later ones
//! those that changed since.
//!
//! Two workers of one node may see different GPUs, and a requeued one is a new launch on the node of
//! the last: their devices, and what changed between them, belong to the run as much as its rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::Path,
};

use super::open_begun;
use crate::{
    folder::{self, Folder},
    input,
    limits::TABLE_BYTES,
    record::{
        RunFolder, SnapshotMoment, SnapshotRow, TableError,
        launch_folder::{self, BEFORE, LaunchFile},
        snapshots::{GONE, SNAPSHOTS},
        table::{Record, TableHead, cells_of, line_of, scan},
    },
};

/// Section and name of a field.
type Field = (String, String);

/// The last reading of a field: value, unit and reason.
type Said = [String; 3];

/// The fields of the devices of one node, as they were last.
type Known = BTreeMap<String, BTreeMap<Field, Said>>;

/// Writes `snapshots.csv` of a run, and the pages of the launches that show a device for the first
/// time.
///
/// # Errors
/// A table cannot be read or written.
pub(super) fn collect(run: &RunFolder, folder: &Folder, launches: &[LaunchFile]) -> io::Result<()> {
    let numbered = launches.iter().map(|file| (file.launch.launch, Some(file)));
    let mut tables: Vec<(u64, Option<&LaunchFile>)> =
        std::iter::once((BEFORE, None)).chain(numbered).collect();
    tables.retain(|(launch, _)| {
        let table = launch_folder::folder(run, *launch).snapshots_table();
        table.is_file()
    });
    if tables.is_empty() {
        return Ok(());
    }
    let mut with_page = Vec::new();
    let path = run.snapshots_table();
    let (_, name) = folder::split(&path)?;
    folder.fill_among_others(name, &mut |file| {
        with_page.clear();
        let columns = SNAPSHOTS.spec(&[]).columns;
        file.write_all(&line_of(columns.iter().map(String::as_str)))?;
        let mut nodes: BTreeMap<&str, Known> = BTreeMap::new();
        for (launch, of) in &tables {
            let mut adding = Adding {
                launch: *launch,
                known: nodes
                    .entry(of.map_or("", |file| file.launch.host()))
                    .or_default(),
                listed: BTreeMap::new(),
                run_seconds: None,
                has_new_device: false,
                columns: &columns,
                file: &mut *file,
            };
            adding.add(run, &launch_folder::folder(run, *launch).snapshots_table())?;
            if adding.has_new_device && of.is_some() {
                with_page.push(*launch);
            }
        }
        Ok(())
    })?;
    for launch in with_page {
        let own = launch_folder::folder(run, launch);
        for (from, to) in [
            (own.snapshot_page(launch), run.snapshot_page(launch)),
            (own.packages_list(launch), run.packages_list(launch)),
        ] {
            if let Ok(page) = input::read(&from, &TABLE_BYTES) {
                folder.write_among_others(folder::split(&to)?.1, &page)?;
            }
        }
    }
    Ok(())
}

/// The table of one launch, on its way into that of the run.
struct Adding<'a> {
    launch: u64,
    known: &'a mut Known,
    /// The fields of each device that the launch has listed and not yet compared with those before.
    listed: BTreeMap<String, BTreeSet<Field>>,
    run_seconds: Option<f64>,
    /// Whether this launch lists a device that no earlier launch of its node has listed.
    has_new_device: bool,
    columns: &'a [String],
    file: &'a mut dyn Write,
}

impl Adding<'_> {
    /// Adds the rows of a table, as far as it is not damaged: it is a side table, and the rows of
    /// trials are not held up by it.
    ///
    /// # Errors
    /// The table cannot be read, or that of the run not be written.
    fn add(&mut self, run: &RunFolder, path: &Path) -> io::Result<()> {
        let mut file = match open_begun(run, path, SNAPSHOTS.version) {
            Ok(Some(file)) => file,
            Err(error @ TableError::Io { .. }) => return Err(error.into()),
            Ok(None) | Err(_) => return Ok(()),
        };
        let (mut places, mut failed) = (None, None);
        let scanned = scan(&mut file, path, SNAPSHOTS.version, &mut |record| {
            let places = match &places {
                Some(places) => places,
                None => places.insert(Places::of(record.head(), self.columns)?),
            };
            self.take(places, record).map_err(|cause| {
                failed = Some(cause);
                record.problem("it cannot be written".to_owned())
            })
        });
        match (failed, scanned) {
            (Some(error), _) => Err(error),
            (None, Err(error @ TableError::Io { .. })) => Err(error.into()),
            // A launch that died over its list has not listed all.
            (None, Ok(head)) if head.torn.is_none() => self.note_what_is_gone(),
            (None, _) => Ok(()),
        }
    }

    fn take(&mut self, places: &Places, record: &Record<'_>) -> io::Result<()> {
        let cells: Vec<&str> = record.cells().collect();
        let cell = |at: usize| cells.get(at).copied().unwrap_or_default();
        let device = cell(places.device);
        let field = (
            cell(places.section).to_owned(),
            cell(places.field).to_owned(),
        );
        let said = places.said.map(|at| cell(at).to_owned());
        let is_of_launch = cell(places.moment) == "launch";
        if is_of_launch {
            self.run_seconds = places.run_seconds.and_then(|at| cell(at).parse().ok());
            self.has_new_device |= !self.known.contains_key(device);
            let listed = self.listed.entry(device.to_owned()).or_default();
            listed.insert(field.clone());
        } else if !self.listed.is_empty() {
            self.note_what_is_gone()?;
        }
        // What one launch alone wrote, before there were several, stays as it is.
        let is_first = self.launch == BEFORE;
        let known = self.known.entry(device.to_owned()).or_default();
        if is_of_launch && !is_first && known.get(&field) == Some(&said) {
            return Ok(());
        }
        known.insert(field, said);
        let of_run = places.of_run.iter().map(|at| at.map_or("", cell));
        self.file.write_all(&line_of(of_run))
    }

    /// A field that its node had and this launch no longer lists, such as a process on a GPU.
    fn note_what_is_gone(&mut self) -> io::Result<()> {
        for (device, listed) in std::mem::take(&mut self.listed) {
            if self.launch == BEFORE {
                continue;
            }
            let known = self.known.entry(device.clone()).or_default();
            for (field, said) in known {
                if listed.contains(field) || said[0].is_empty() {
                    continue;
                }
                *said = [String::new(), String::new(), GONE.to_owned()];
                let row = SnapshotRow {
                    kiln_table: SNAPSHOTS.version.to_owned(),
                    launch: self.launch,
                    moment: SnapshotMoment::Launch,
                    device: device.clone(),
                    section: field.0.clone(),
                    field: field.1.clone(),
                    reason: Some(GONE.to_owned()),
                    run_seconds: self.run_seconds,
                    ..SnapshotRow::default()
                };
                let cells = cells_of(&row).map_err(io::Error::other)?;
                self.file
                    .write_all(&line_of(cells.iter().map(String::as_str)))?;
            }
        }
        Ok(())
    }
}

/// Where the columns of a table stand.
struct Places {
    moment: usize,
    device: usize,
    section: usize,
    field: usize,
    /// Value, unit, reason.
    said: [usize; 3],
    run_seconds: Option<usize>,
    /// Each column of the run's table, if this one has it.
    of_run: Vec<Option<usize>>,
}

impl Places {
    fn of(head: &TableHead, columns: &[String]) -> Result<Self, TableError> {
        let place = |name: &str| head.place(name);
        Ok(Self {
            moment: place("moment")?,
            device: place("device")?,
            section: place("section")?,
            field: place("field")?,
            said: [place("value")?, place("unit")?, place("reason")?],
            run_seconds: place("run_seconds").ok(),
            of_run: columns.iter().map(|column| place(column).ok()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::record::{at_last_launch, launch_folder::LaunchProcess};

    /// Rows of one launch: moment, device, field, value.
    type Row<'a> = (&'a str, &'a str, &'a str, &'a str);

    fn begin(run: &RunFolder, launch: u64, host: &str, rows: &[Row<'_>]) -> LaunchFile {
        let own = launch_folder::folder(run, launch);
        fs::create_dir_all(own.path()).unwrap();
        let mut text = SNAPSHOTS.spec(&[]).columns.join(",") + "\n";
        for (moment, device, field, value) in rows {
            text +=
                &format!("snapshots/2,{launch},,,{moment},{device},state,{field},{value},,,1.5\n");
        }
        fs::write(own.snapshots_table(), text).unwrap();
        fs::write(own.snapshot_page(launch), format!("page of {launch}")).unwrap();
        let file = serde_json::from_value(json!({
            "launch": launch, "started_utc": "2026-01-01T00:00:00Z", "boot_id": "b", "host_id": host,
            "monotonic_nanoseconds": 1, "run_anchor_nanoseconds": 1, "pid": 1, "command_line": [],
            "machine": {}, "devices": [], "environment": {},
            "versions": {"kiln": "0", "kiln_sha256": null, "trial_program": "t", "trial_program_sha256": null},
        }));
        let process = LaunchProcess {
            namespace: String::new(),
            started: 1,
            node: None,
        };
        LaunchFile::new(process, file.unwrap())
    }

    #[test]
    fn a_node_is_listed_whole_once_and_then_what_changed_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let launches = [
            begin(
                &run,
                1,
                "a",
                &[
                    ("launch", "host", "kernel", "6.1"),
                    ("launch", "GPU-1", "temperature", "40"),
                    ("launch", "GPU-1", "process 7", "kiln"),
                    ("start", "GPU-1", "temperature", "50"),
                ],
            ),
            begin(&run, 2, "b", &[("launch", "host", "kernel", "6.1")]),
            // Another GPU of the first node.
            begin(
                &run,
                3,
                "a",
                &[
                    ("launch", "host", "kernel", "6.1"),
                    ("launch", "GPU-2", "temperature", "30"),
                ],
            ),
            begin(
                &run,
                4,
                "a",
                &[
                    ("launch", "host", "kernel", "6.1"),
                    ("launch", "GPU-1", "temperature", "40"),
                    ("end", "GPU-1", "temperature", "60"),
                ],
            ),
            begin(
                &run,
                5,
                "a",
                &[
                    ("launch", "host", "kernel", "6.1"),
                    ("launch", "GPU-1", "temperature", "60"),
                    ("end", "GPU-1", "temperature", "99"),
                ],
            ),
        ];
        let open = run.open().unwrap();
        collect(&run, &open, &launches).unwrap();
        let text = fs::read_to_string(run.snapshots_table()).unwrap();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "snapshots/2,1,,,launch,host,state,kernel,6.1,,,1.5",
                "snapshots/2,1,,,launch,GPU-1,state,temperature,40,,,1.5",
                "snapshots/2,1,,,launch,GPU-1,state,process 7,kiln,,,1.5",
                "snapshots/2,1,,,start,GPU-1,state,temperature,50,,,1.5",
                "snapshots/2,2,,,launch,host,state,kernel,6.1,,,1.5",
                "snapshots/2,3,,,launch,GPU-2,state,temperature,30,,,1.5",
                "snapshots/2,4,,,launch,GPU-1,state,temperature,40,,,1.5",
                "snapshots/2,4,,,launch,GPU-1,state,process 7,,,no longer there,1.5",
                "snapshots/2,4,,,end,GPU-1,state,temperature,60,,,1.5",
                "snapshots/2,5,,,end,GPU-1,state,temperature,99,,,1.5",
            ]
        );
        let has_page = |launch: &u64| run.snapshot_page(*launch).is_file();
        assert_eq!((1..6).filter(has_page).collect::<Vec<u64>>(), [1, 2, 3]);
        collect(&run, &open, &launches).unwrap();
        assert_eq!(fs::read_to_string(run.snapshots_table()).unwrap(), text);

        let named = super::super::launches::node_names(&launches);
        let launches = launches.into_iter().zip(named).map(|(file, node)| {
            let mut launch = file.launch;
            launch.node = Some(node);
            launch
        });
        let launches: Vec<_> = launches.collect();
        let seen = |launches: &[_]| -> Vec<String> {
            let rows = at_last_launch(&run.snapshots_table(), launches).unwrap();
            let shown = rows.iter().map(|row| {
                let value = row.value.as_deref().unwrap_or("-");
                format!("{} {} {value}", row.device, row.field)
            });
            shown.collect()
        };
        // What the fifth launch found, of which nothing was new.
        let at_last = [
            "host kernel 6.1",
            "GPU-1 temperature 60",
            "GPU-2 temperature 30",
        ];
        assert_eq!(seen(&launches), at_last);
        assert_eq!(seen(&[]), Vec::<String>::new());
    }

    #[test]
    fn what_one_launch_alone_wrote_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let twice = [
            ("launch", "host", "kernel", "6.1"),
            ("launch", "host", "kernel", "6.1"),
        ];
        begin(&run, BEFORE, "a", &twice);
        collect(&run, &run.open().unwrap(), &[]).unwrap();
        let text = fs::read_to_string(run.snapshots_table()).unwrap();
        assert_eq!(text.matches(",kernel,6.1,").count(), 2, "{text}");
    }

    #[test]
    fn a_damaged_table_of_a_launch_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let all = [
            ("launch", "host", "kernel", "6.1"),
            ("launch", "host", "process 7", "x"),
        ];
        let launches = [
            begin(&run, 1, "a", &all),
            begin(&run, 2, "a", &all),
            begin(&run, 3, "b", &all[..1]),
        ];
        let second = launch_folder::folder(&run, 2).snapshots_table();
        let text = fs::read_to_string(&second).unwrap();
        let rows = |damaged: &str| {
            fs::write(&second, damaged).unwrap();
            collect(&run, &run.open().unwrap(), &launches).unwrap();
            let text = fs::read_to_string(run.snapshots_table()).unwrap();
            text.lines().count() - 1
        };
        assert_eq!(rows(&text), 3);
        let begun = text.replace(",process 7,x,,,1.5\n", ",proc");
        assert_eq!(rows(&begun), 3, "nothing is told to be gone");
        assert_eq!(rows(&text.replace(",6.1,", ",6.2,")), 4);
        assert_eq!(rows(&(text.replace(",6.1,", ",6.2,") + "a,b\nc,d\n")), 4);
    }

    #[test]
    fn a_table_without_a_later_column_gets_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::at(folder.path());
        let first = begin(&run, 1, "a", &[]);
        let columns = SNAPSHOTS.spec(&[]).columns;
        let old = columns[..columns.len() - 1].join(",");
        let row = "snapshots/1,1,,,launch,host,state,kernel,6.1,,";
        let path = launch_folder::folder(&run, 1).snapshots_table();
        fs::write(path, format!("{old}\n{row}\n")).unwrap();
        collect(&run, &run.open().unwrap(), &[first]).unwrap();
        let text = fs::read_to_string(run.snapshots_table()).unwrap();
        assert_eq!(text, format!("{}\n{row},\n", columns.join(",")));
    }
}
