//! The commands of the guide and of the README, run as they stand there: in a folder with a text,
//! images and series, with few steps, on the CPU.
//!
//! Marks behind the language of a block: `gpu` runs it with a driver that plays an H200, `elsewhere`
//! leaves it out (a compiler, a scheduler, Python's torch), `varies` does not compare its output.
//! `sbatch` is a stand-in that runs the script.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    pages::{Block, ShownCommand, blocks, pages, pages_in, root},
    scripted_child::{program::write_program, real_trial},
    use_model::png,
};

/// The program that runs the trials of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Child {
    /// kiln's own, for so many steps.
    Trained(u64),
    Scripted,
}

/// One test per page.
macro_rules! pages {
    ($($test:ident: $page:literal, $child:expr;)*) => {
        $(#[test]
        fn $test() {
            run_page(&guide().join($page), $child);
        })*
        const PAGES: &[&str] = &[$($page),*];
    };
}

pages! {
    a_batch_size_is_found: "batch-size.md", Child::Scripted;
    a_job_runs_on_a_cluster: "cluster.md", Child::Scripted;
    machines_are_compared: "compare-machines.md", Child::Scripted;
    a_model_is_fine_tuned: "fine-tuning.md", Child::Trained(12);
    the_first_sweep_runs: "first-sweep.md", Child::Trained(12);
    an_idle_gpu_is_explained: "gpu-at-3-percent.md", Child::Scripted;
    a_learning_rate_is_found: "learning-rate.md", Child::Trained(40);
    a_program_of_ones_own_runs: "own-model.md", Child::Trained(12);
    the_table_for_a_figure_is_printed: "plot.md", Child::Trained(12);
    the_model_is_used: "use-the-model.md", Child::Trained(12);
}

#[test]
fn the_readme_runs() {
    run_page(&root().join("README.md"), Child::Trained(12));
}

fn guide() -> PathBuf {
    root().join("docs/guide")
}

#[test]
fn every_page_of_the_guide_is_tested_listed_and_one_screen_long() {
    let index = fs::read_to_string(guide().join("README.md")).unwrap();
    let mut tested = Vec::new();
    for page in pages_in(&guide()) {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        let lines = fs::read_to_string(&page).unwrap().lines().count();
        assert!(lines <= MOST_LINES, "{name} has {lines} lines");
        if name != "README.md" {
            assert!(index.contains(&format!("]({name})")), "{name}");
            tested.push(name);
        }
    }
    assert_eq!(tested, PAGES);
}

/// Lines of a page of the guide.
const MOST_LINES: usize = 70;

/// Committed runs that the pages show.
const COMMITTED: [&str; 3] = [
    "image-folder-workers",
    "quickstart-2core-epyc",
    "quickstart-2core-xeon",
];

/// Whether a command reads committed runs only, so that it prints the same everywhere.
fn reads_committed_runs(typed: &str) -> bool {
    let words: Vec<&str> = typed.split_whitespace().collect();
    matches!(words[..], ["kiln", "report" | "compare", run, ..] if COMMITTED.contains(&run))
}

/// A folder as its reader has it: data, programs, and the files of the repository.
struct Desk {
    folder: tempfile::TempDir,
    child: Child,
}

impl Desk {
    fn new(child: Child) -> Self {
        let desk = Self {
            folder: tempfile::tempdir().unwrap(),
            child,
        };
        desk.write_data();
        desk.put_programs();
        for run in COMMITTED {
            desk.copy(&format!("results/{run}"));
        }
        desk.copy("tests/foreign_trial");
        desk.copy("examples/own-model");
        desk.run("git init --quiet", None);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn copy(&self, name: &str) {
        let to = self.path(name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let copied = Command::new("cp")
            .arg("-r")
            .args([root().join(name), to])
            .status();
        assert!(copied.unwrap().success(), "{name}");
    }

    fn write_data(&self) {
        let line = "KING: To be, or not to be: that is the question.\n";
        fs::write(self.path("corpus.txt"), line.repeat(300)).unwrap();
        for (class, color) in [("bag", 40), ("sneaker", 200)] {
            let folder = self.path("photos").join(class);
            fs::create_dir_all(&folder).unwrap();
            for number in 0..24 {
                let pixels = vec![color + number; 16 * 16 * 3];
                png(&folder.join(format!("{number:05}.png")), 16, 16, &pixels);
            }
        }
        fs::create_dir(self.path("prices")).unwrap();
        for symbol in ["AAPL", "KO"] {
            let rows = (0..140).map(|day| {
                let (month, day, price) = (1 + day / 28, 1 + day % 28, 100 + day * day % 17);
                format!("2020-{month:02}-{day:02},{price}.5\n")
            });
            let rows: String = rows.collect();
            let file = self.path("prices").join(format!("{symbol}.csv"));
            fs::write(file, format!("Date,Close\n{rows}")).unwrap();
        }
    }

    fn put_programs(&self) {
        fs::create_dir_all(self.path("bin")).unwrap();
        fs::create_dir_all(self.path("target/release")).unwrap();
        let kiln = Path::new(env!("CARGO_BIN_EXE_kiln"));
        symlink(kiln, self.path("bin/kiln")).unwrap();
        let own_model = kiln.with_file_name("own-model");
        symlink(own_model, self.path("target/release/own-model")).unwrap();
        write_program(
            &self.path("bin/sbatch"),
            "#!/bin/sh\necho Submitted batch job 1\nexec \"./$1\" >slurm-1.out 2>&1\n",
        );
    }

    /// Runs a command of a page; returns what it printed.
    fn run(&self, typed: &str, driver: Option<&Path>) -> String {
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("bash");
        shell
            .args(["-c", typed])
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KILN_")) {
            shell.env_remove(name);
        }
        let scripted = root().join("tests/scripted_child/child.sh");
        shell
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("HOME", self.folder.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("KILN_LOCKS", self.path("locks"))
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("SCRIPTED_CHILD", "tuned")
            .env("SCRIPTED_CHILD_FITS", "40")
            .env(
                "KILN_TRIAL",
                match self.child {
                    Child::Trained(_) => real_trial(),
                    Child::Scripted => scripted,
                },
            );
        if let Child::Trained(steps) = self.child {
            shell
                .env("KILN_TRAIN__STEPS", steps.to_string())
                .env("KILN_TRAIN__CPU_THREADS", "1")
                .env("KILN_MEASURE__WARMUP_SECONDS", "0.0");
        }
        for role in ["AUTHOR", "COMMITTER"] {
            shell
                .env(format!("GIT_{role}_NAME"), "reader")
                .env(format!("GIT_{role}_EMAIL"), "reader@example.org");
        }
        if let Some(driver) = driver {
            shell.env("KILN_NVML_LIB", driver);
        }
        let output = shell.output().unwrap();
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let printed = printed.concat();
        assert!(output.status.success(), "{typed}\n{printed}");
        printed
    }

    fn write(&self, name: &str, block: &Block) {
        match block.text.starts_with("#!") {
            true => write_program(&self.path(name), &block.text),
            false => fs::write(self.path(name), &block.text).unwrap(),
        }
    }
}

fn run_page(page: &Path, child: Child) {
    let desk = Desk::new(child);
    let blocks = blocks(page);
    // Pages after the first go on with its file and its run.
    if !page.ends_with("first-sweep.md") && !page.ends_with("README.md") {
        desk.run("kiln init first.yaml --data corpus.txt", None);
        desk.run("kiln run first.yaml --quiet", None);
    }
    let driver = fake_nvml::Scenario::read(&root().join("tests/scenarios/h200.yaml")).unwrap();
    let driver = fake_nvml::install::install(desk.folder.path(), &driver).unwrap();
    let mut count = 0;
    for block in &blocks {
        if let Some(name) = block.file() {
            desk.write(name, block);
            continue;
        }
        if block.is_marked("elsewhere") {
            continue;
        }
        let driver = block.is_marked("gpu").then_some(driver.as_path());
        for command in block.commands() {
            let printed = desk.run(&command.typed, driver);
            if !block.is_marked("varies") {
                let place = format!("{}:{}", page.display(), block.line);
                assert_shown(&command, &printed, &place);
            }
            count += 1;
        }
    }
    assert!(count > 0, "{} has no command", page.display());
}

/// Lines without digits stand in the output as the page shows them, and so do the heads of tables.
/// The rest depends on the machine and on the number of steps, except where a command reads
/// committed runs.
fn assert_shown(command: &ShownCommand, printed: &str, place: &str) {
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    let is_rule = |line: &str| line.starts_with('─');
    let may_vary = |letter: char| letter.is_ascii_digit() && !reads_committed_runs(&command.typed);
    for (line, next) in command
        .shown
        .iter()
        .zip(command.shown.iter().skip(1).chain([&String::new()]))
    {
        let line = line.trim();
        let is_fixed =
            !line.contains(|letter: char| may_vary(letter) || letter == '…') && !is_rule(line);
        if is_rule(next) {
            let heads = line
                .split("  ")
                .map(str::trim)
                .filter(|head| !head.is_empty());
            for head in heads {
                let is_head = |pair: &[&str]| is_rule(pair[1]) && pair[0].contains(head);
                assert!(
                    lines.windows(2).any(is_head),
                    "{place}: {}: the column `{head}` is not in\n{printed}",
                    command.typed
                );
            }
        } else if is_fixed {
            assert!(
                line.is_empty() || lines.contains(&line),
                "{place}: {}: `{line}` is not in\n{printed}",
                command.typed
            );
        }
    }
}

/// The page shows what the committed tables of `--rerun` give, which needs no second run.
#[test]
fn the_example_of_comparing_is_what_its_committed_runs_give() {
    let blocks = blocks(&root().join("docs/comparing.md"));
    let example = blocks
        .iter()
        .find(|block| block.text.starts_with("$ kiln compare --rerun"))
        .unwrap();
    let sides = ["base", "new"]
        .map(|side| format!("results/verdict-rerun/rerun-20261123T160618Z/{side}/verdict-spread"));
    let output = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .arg("compare")
        .args(sides)
        .current_dir(root())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let shown: Vec<&str> = example.text.lines().skip(2).collect();
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!(shown, printed);
}

/// A page's blocks without their comments, which are translated, and the targets of its links but
/// the other language.
fn shape(page: &str) -> (Vec<String>, Vec<String>) {
    let path = root().join(page);
    let comment = regex::Regex::new("(?m)(^| +)# .*$").unwrap();
    let bare = |block: &Block| {
        let text = comment.replace_all(&block.text, "").into_owned();
        format!("{} {}\n{text}", block.language, block.marks.join(" "))
    };
    let text = fs::read_to_string(&path).unwrap();
    let link = regex::Regex::new(r"\]\(([^)]+)\)").unwrap();
    let links = link.captures_iter(&text).map(|found| found[1].to_owned());
    (
        blocks(&path).iter().map(bare).collect(),
        links.filter(|to| !to.starts_with("README")).collect(),
    )
}

#[test]
fn both_readmes_have_the_same_blocks_and_links_and_are_a_screen_and_a_half_long() {
    let (english, chinese) = (shape("README.md"), shape("README.zh-CN.md"));
    assert_eq!(english, chinese);
    assert!(english.0.len() >= 4 && english.1.len() >= 20, "{english:?}");
    for page in ["README.md", "README.zh-CN.md"] {
        let lines = fs::read_to_string(root().join(page))
            .unwrap()
            .lines()
            .count();
        assert!(lines <= 80, "{page} has {lines} lines");
    }
}

/// Headings of a page, as a link names them.
fn anchors(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|heading| {
            let words = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

#[test]
fn every_link_of_the_pages_leads_to_a_file_and_a_heading() {
    let link = regex::Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for found in link.captures_iter(&text) {
            let (to, anchor) = found[1].split_once('#').unwrap_or((&found[1], ""));
            if to.starts_with("http") {
                continue;
            }
            let target = match to {
                "" => page.clone(),
                to => page.parent().unwrap().join(to),
            };
            assert!(target.exists(), "{}: {}", page.display(), &found[1]);
            assert!(
                anchor.is_empty() || anchors(&target).contains(&anchor.to_owned()),
                "{}: {}: the headings are {:?}",
                page.display(),
                &found[1],
                anchors(&target)
            );
        }
    }
}
