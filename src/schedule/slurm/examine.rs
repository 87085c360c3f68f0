//! Checks of a cluster before anything is submitted: the programs of Slurm, the partition, limits, the
//! accounting, whether Slurm would take the job of an experiment, and whether the folder of the runs can
//! be one that all nodes see. Nothing is started.

use std::path::Path;

use kiln_core::{
    record::{Check, CheckState},
    spec::Slurm,
    units::{Bytes, TimeSpan, without_controls},
};
use kiln_hardware::{
    FileSystem, Sight, file_system,
    host::{disk_free_bytes, disk_free_files},
};

use super::{
    allocation::time_left,
    client::{Client, ClientError},
    job::test_arguments,
    states::{kill_wait, most_tasks, seconds, setting, value},
};

/// A worker that is told to stop at once needs so long for its rows.
const SHORTEST_KILL_WAIT: u64 = 10;
/// Ended tasks are looked up within two beats of a minute.
const SHORTEST_MEMORY: u64 = 120;
const COMMANDS: &str = "slurm-commands";
const PARTITION: &str = "slurm-partition";
const LIMITS: &str = "slurm-limits";
const ACCOUNTING: &str = "slurm-accounting";
const JOB: &str = "slurm-job";

/// The checks of `kiln doctor --on slurm`. `slurm` is what the workers would ask for; `results` is the
/// folder of the runs, `libtorch` that of libtorch, if its place is known.
pub fn examine(slurm: &Slurm, results: &Path, libtorch: Option<&Path>) -> Vec<Check> {
    let client = Client::new();
    let commands = commands(&|program| client.ask(program, &["--version"]));
    let can_ask = commands.state != CheckState::Problem;
    let mut checks = vec![commands];
    if can_ask {
        checks.push(
            match client.ask("scontrol", &["--oneliner", "show", "partition"]) {
                Ok(said) => partition(slurm, &said),
                Err(error) => Check::unknown(PARTITION, error.to_string()),
            },
        );
        match client.ask("scontrol", &["show", "config"]) {
            Ok(config) => checks.extend([limits(slurm, &config), accounting(&config)]),
            Err(error) => {
                checks.extend(
                    [LIMITS, ACCOUNTING].map(|name| Check::unknown(name, error.to_string())),
                );
            }
        }
        checks.push(job(client.ask("sbatch", &test_arguments(slurm))));
    }
    let of = |name, folder| folder_check(name, folder, file_system(folder).ok());
    checks.push(of("shared-folder", results));
    checks.extend(libtorch.map(|folder| of("programs", folder)));
    checks
}

/// Whether a folder can be one that every node sees. Only a look from another node could show that it
/// is.
fn folder_check(name: &str, folder: &Path, kind: Option<FileSystem>) -> Check {
    let shown = folder.display();
    let Some(kind) = kind else {
        return Check::unknown(name, format!("the system does not say what {shown} is on"));
    };
    let free = [
        disk_free_bytes(folder)
            .ok()
            .map(|free| format!(", {} free", Bytes(free))),
        disk_free_files(folder).map(|files| format!(", room for {files} files")),
    ];
    let free: String = free.into_iter().flatten().collect();
    let evidence = format!("{shown} is on {}{free}", kind.name);
    match kind.sight {
        Sight::Network => Check::ok(name, evidence),
        Sight::Memory => Check::problem(
            name,
            format!("{evidence}: the memory of this host"),
            "use a folder that every node sees under the same path",
        ),
        Sight::Disk => Check::warning(
            name,
            format!("{evidence}: a disk of this host"),
            "other nodes see it only if this host exports it; else use a folder that every node sees under the same path",
        ),
        Sight::Unsure => Check::warning(
            name,
            evidence,
            "kiln relies on a rename having one winner; ask the administrator whether this file system promises it between hosts",
        ),
        Sight::Unknown => Check::unknown(name, format!("{evidence}, which kiln does not know")),
    }
}

type Asked = Result<String, ClientError>;

/// Whether the programs that kiln calls are there. Workers and attendance can do without the last two.
fn commands(version: &dyn Fn(&'static str) -> Asked) -> Check {
    let mut said = Vec::new();
    for program in ["sbatch", "squeue", "scancel"] {
        match version(program) {
            Ok(words) => said.push(words.trim().to_owned()),
            Err(error) => {
                let remedy = "run this where jobs are submitted, such as a login node";
                return Check::problem(COMMANDS, error.to_string(), remedy);
            }
        }
    }
    said.dedup();
    let versions = without_controls(&said.join(", "));
    let missing: Vec<&str> = ["scontrol", "sacct"]
        .into_iter()
        .filter(|program| version(program).is_err())
        .collect();
    match missing.as_slice() {
        [] => Check::ok(COMMANDS, versions),
        missing => Check::warning(
            COMMANDS,
            format!(
                "{versions}; {} missing or without an answer",
                missing.join(" and ")
            ),
            "kiln then learns later, or never, why a worker ended",
        ),
    }
}

/// The partition of the workers, or the cluster's default.
fn partition(slurm: &Slurm, said: &str) -> Check {
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let named = slurm.partition.as_deref();
    // Slurm takes several names with commas, and uses the one that starts a job first.
    let is_wanted = |line: &&&str| match named {
        Some(named) => named.split(',').any(|one| one == name_in(line)),
        None => value(line, "Default") == Some("YES"),
    };
    let all = || {
        let names: Vec<&str> = lines.iter().copied().map(name_in).collect();
        names.join(", ")
    };
    let Some(line) = lines.iter().find(is_wanted) else {
        return match named {
            Some(named) => Check::problem(
                PARTITION,
                format!("there is no partition {named}"),
                format!("set `run.slurm.partition` to one of {}", all()),
            ),
            None => Check::warning(
                PARTITION,
                "the cluster has no default partition",
                format!("set `run.slurm.partition` to one of {}", all()),
            ),
        };
    };
    let (state, most) = (value(line, "State"), value(line, "MaxTime"));
    let evidence = format!(
        "{}: {}, {} nodes, time limit {}",
        name_in(line),
        state.unwrap_or("state unknown"),
        value(line, "TotalNodes").unwrap_or("?"),
        most.unwrap_or("unknown"),
    );
    if state.is_some_and(|state| state != "UP") {
        let remedy = "its jobs wait until an administrator opens it; name another partition";
        return Check::problem(PARTITION, evidence, remedy);
    }
    let too_long = slurm
        .time
        .zip(most.and_then(time_left))
        .filter(|(time, most)| time.0 > *most);
    match too_long {
        Some((time, most)) => Check::problem(
            PARTITION,
            format!("{evidence}, and `run.slurm.time` is {time}"),
            format!(
                "set `run.slurm.time` to {} or less; workers that run out of time are started again",
                TimeSpan(most)
            ),
        ),
        None => Check::ok(PARTITION, evidence),
    }
}

fn name_in(line: &str) -> &str {
    value(line, "PartitionName").unwrap_or_default()
}

/// The limits that decide how workers end and how many there may be.
fn limits(slurm: &Slurm, config: &str) -> Check {
    let of = |name| setting(config, name).unwrap_or("unknown");
    let evidence = [
        "MaxArraySize",
        "KillWait",
        "PreemptMode",
        "JobRequeue",
        "MinJobAge",
    ]
    .map(|name| format!("{name} {}", of(name)))
    .join(", ");
    let most = most_tasks(config).filter(|most| *most < slurm.workers && slurm.workers > 1);
    let short = kill_wait(config).filter(|wait| *wait < SHORTEST_KILL_WAIT);
    let remedy = match (most, short) {
        (Some(most), _) => format!("a job array has at most {most} tasks here; set `run.slurm.workers` to {most} or less"),
        (None, Some(_)) => "a worker that is cancelled has little time for the rows of its trials; `kiln stop --now` gives it more than `scancel`".to_owned(),
        (None, None) if of("PreemptMode").contains("CANCEL") => {
            "Slurm does not start a preempted worker again; stay in attendance (`kiln wait`), which replaces it".to_owned()
        }
        (None, None) => return Check::ok(LIMITS, evidence),
    };
    Check::warning(LIMITS, evidence, remedy)
}

/// Who says how a task ended once `squeue` no longer lists it.
fn accounting(config: &str) -> Check {
    let kind = setting(config, "AccountingStorageType").unwrap_or("unknown");
    if !kind.ends_with("/none") {
        return Check::ok(ACCOUNTING, kind);
    }
    let age = setting(config, "MinJobAge").unwrap_or("unknown");
    let evidence = format!("none; the controller remembers a task for {age}");
    match seconds(age) {
        Some(age) if age < SHORTEST_MEMORY => Check::warning(
            ACCOUNTING,
            evidence,
            "kiln may ask too late how a worker ended; its row then says only that Slurm has forgotten it",
        ),
        _ => Check::ok(ACCOUNTING, evidence),
    }
}

/// The check of the answer of `sbatch --test-only`.
fn job(asked: Asked) -> Check {
    match asked {
        Ok(_) => Check::ok(
            JOB,
            "Slurm would take a job array with the options of `run.slurm`",
        ),
        Err(error @ ClientError::Refused { .. }) => Check::problem(
            JOB,
            without_controls(&error.to_string()),
            "change `run.slurm`; `docs/clusters.md` names its keys",
        ),
        Err(error) => Check::unknown(JOB, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::record::CheckState::{self, Ok as Fine, Problem, Warning};

    use super::*;

    /// Output of a command of Slurm 22.05, from the captures.
    fn captured(command: &str) -> &'static str {
        let text = include_str!("../../../tests/slurm/captures/configuration.txt");
        let begin = text.find(&format!("$ {command}\n")).unwrap() + command.len() + 3;
        let end = text[begin..].find("\nexit status").unwrap();
        &text[begin..begin + end]
    }

    fn asks(yaml: &str) -> Slurm {
        serde_yaml::from_str(yaml).unwrap()
    }

    fn states(check: &Check) -> (CheckState, String) {
        let remedy = check.remedy.clone().unwrap_or_default();
        (check.state, format!("{} -> {remedy}", check.evidence))
    }

    #[test]
    fn a_partition_that_is_missing_closed_or_too_short_is_a_problem() {
        let said = captured("scontrol --oneliner show partition short");
        let find = |yaml: &str, said: &str| states(&partition(&asks(yaml), said));
        let (state, text) = find("{partition: short, time: 5m}", said);
        assert_eq!(state, Fine, "{text}");
        assert!(
            text.starts_with("short: UP, 2 nodes, time limit 00:10:00"),
            "{text}"
        );
        let (state, text) = find("{partition: short, time: 4h}", said);
        assert!(
            state == Problem && text.contains("`run.slurm.time` is 4h") && text.contains("to 10m"),
            "{text}"
        );
        let (state, text) = find("{partition: gpu}", said);
        assert!(
            state == Problem && text.contains("no partition gpu") && text.ends_with("one of short"),
            "{text}"
        );
        let (state, text) = find("{}", said);
        assert!(
            state == Warning && text.contains("no default partition"),
            "{text}"
        );
        let (state, text) = find(
            "{partition: 'gpu,short'}",
            &said.replace("State=UP", "State=DRAIN"),
        );
        assert!(state == Problem && text.contains("DRAIN"), "{text}");
        let default = said
            .replace("Default=NO", "Default=YES")
            .replace("00:10:00", "UNLIMITED");
        assert_eq!(find("{time: 400h}", &default).0, Fine);
    }

    #[test]
    fn limits_and_accounting_are_read_from_the_configuration() {
        let config = captured("scontrol show config");
        let (state, text) = states(&limits(&asks("{workers: 4}"), config));
        assert!(
            state == Warning && text.contains("MaxArraySize 101, KillWait 5 sec"),
            "{text}"
        );
        let calm = config.replace(
            "KillWait                = 5 sec",
            "KillWait                = 30 sec",
        );
        assert_eq!(limits(&asks("{workers: 100}"), &calm).state, Fine);
        let (state, text) = states(&limits(&asks("{workers: 101}"), &calm));
        assert!(
            state == Warning && text.contains("at most 100 tasks"),
            "{text}"
        );
        let cancels = calm.replace(
            "PreemptMode             = REQUEUE",
            "PreemptMode             = CANCEL",
        );
        let (state, text) = states(&limits(&asks("{workers: 1}"), &cancels));
        assert!(state == Warning && text.contains("`kiln wait`"), "{text}");
        let (state, text) = states(&accounting(config));
        assert!(state == Warning && text.contains("for 3 sec"), "{text}");
        let longer = config.replace(
            "MinJobAge               = 3 sec",
            "MinJobAge               = 300 sec",
        );
        assert_eq!(accounting(&longer).state, Fine);
        let kept = config.replace("accounting_storage/none", "accounting_storage/slurmdbd");
        assert_eq!(accounting(&kept).evidence, "accounting_storage/slurmdbd");
    }

    #[test]
    fn a_folder_of_a_network_can_be_shared_and_one_in_memory_cannot() {
        let find = |name: &str, sight| {
            let name = name.to_owned();
            let kind = FileSystem { name, sight };
            states(&folder_check("shared-folder", Path::new("/x"), Some(kind)))
        };
        let (state, text) = find("tmpfs", Sight::Memory);
        assert!(
            state == Problem && text.starts_with("/x is on tmpfs, "),
            "{text}"
        );
        assert_eq!(find("lustre", Sight::Network).0, Fine);
        assert_eq!(find("ext4", Sight::Disk).0, Warning);
        assert_eq!(find("fuse", Sight::Unsure).0, Warning);
        assert_eq!(find("0x9fa0", Sight::Unknown).0, CheckState::Unknown);
        let unsaid = folder_check("shared-folder", Path::new("/x"), None);
        assert_eq!(unsaid.state, CheckState::Unknown);
    }

    #[test]
    fn a_missing_program_is_a_problem_only_if_nothing_can_be_submitted_without_it() {
        let without = |gone: &'static str| {
            commands(&|program| match program == gone {
                true => Err(ClientError::Missing(program)),
                false => Ok("slurm-wlm 22.05.8\n".to_owned()),
            })
        };
        assert_eq!(
            states(&without("none")),
            (Fine, "slurm-wlm 22.05.8 -> ".to_owned())
        );
        assert_eq!(without("sbatch").state, Problem);
        assert_eq!(without("scontrol").state, Warning);
        let refused = ClientError::Refused {
            program: "sbatch",
            said: "allocation failure: Invalid qos".to_owned(),
        };
        let (state, text) = states(&job(Err(refused)));
        assert!(state == Problem && text.contains("Invalid qos"), "{text}");
    }
}
