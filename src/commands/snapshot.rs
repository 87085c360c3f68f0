//! `kiln snapshot`: prints all readings of all GPUs once, as text like `nvidia-smi -q`, as CSV, as
//! JSON or in words; or some properties, like `nvidia-smi --query-gpu`.

use kiln_core::units::{clock, without_controls};
use kiln_hardware::{
    Gpu, HostFacts, Nvml, NvmlAbsent, Patience, Snapshot, Which, host,
    query::{Query, QueryFormat, properties},
    read_gpus, silence_of,
    snapshot::{
        HOST, gpu as gpu_snapshot, host as host_snapshot, host_items, items, json as items_json,
        name_of,
    },
    text::{Naming, host_text, text},
    words::{host_words, words},
};
use serde_json::json;

use super::{Status, Stop, machine, note, print, print_json};
use crate::{
    output::{
        csv::line,
        terminal::{note_page, stderr_is_terminal, stdout_is_terminal},
    },
    readings::low_utilization,
};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Only these GPUs: indices, UUIDs or PCI addresses, separated by commas.
    #[arg(short = 'i', long = "id", value_delimiter = ',', value_name = "GPU")]
    id: Vec<String>,
    /// Print a tidy table: device, section, field, value, unit, and the reason where there is no
    /// value. Includes the host.
    #[arg(long, conflicts_with_all = ["json", "words", "query", "list"])]
    csv: bool,
    /// Print one JSON object. Includes the host.
    #[arg(long, conflicts_with_all = ["words", "query", "list"])]
    json: bool,
    /// Explain the readings in a few sentences. Includes the host.
    #[arg(long, conflicts_with_all = ["query", "list"])]
    words: bool,
    /// Print the host's readings as text, after those of the GPUs.
    #[arg(long, conflicts_with_all = ["csv", "json", "words", "query", "list"])]
    host: bool,
    /// Print these properties as CSV, a line per GPU, with nvidia-smi's names, such as
    /// name,memory.used,utilization.gpu.
    #[arg(long, visible_alias = "query-gpu", value_name = "PROPERTIES")]
    query: Option<String>,
    /// Format of `--query`: csv, optionally with noheader and nounits.
    #[arg(long, default_value = "csv", value_name = "WORDS", requires = "query")]
    format: String,
    /// List the properties that `--query` knows, each with its unit and meaning.
    #[arg(long, conflicts_with = "query")]
    list: bool,
}

pub(super) fn run(args: Args) -> Result<Status, Stop> {
    if args.list {
        return print(&list()).map(|()| Status::Success);
    }
    let query = match &args.query {
        Some(properties) => Some(
            QueryFormat::parse(&args.format)
                .and_then(|format| Query::parse(properties, format))
                .map_err(Stop::bad_input)?,
        ),
        None => None,
    };
    let nvml = machine::open_nvml();
    let moment = clock::local_now();
    let gpus = read(&nvml, &args.id)?;
    match (query, &nvml) {
        (Some(_), Err(absent)) => {
            return Err(Stop::new(
                Status::CannotRun,
                format!("`--query` needs a GPU, and none can be read: {absent}"),
            ));
        }
        (Some(query), Ok(_)) => print(&query.answer(&gpus, &moment))?,
        (None, _) => show(&args, &gpus, nvml.as_ref().err(), &moment)?,
    }
    match nvml.err().filter(NvmlAbsent::is_silent) {
        Some(absent) => {
            note(&format!("no GPU was read: {absent}"));
            Ok(Status::Failed)
        }
        None => Ok(tell_silent(&gpus)),
    }
}

/// Reports GPUs whose driver does not answer; other missing readings have their reason in the
/// table.
fn tell_silent(gpus: &[Gpu]) -> Status {
    let silent: Vec<String> = gpus
        .iter()
        .filter_map(|gpu| {
            Some(format!(
                "GPU {} was not read: {}",
                gpu.index.value()?,
                silence_of(gpu)?
            ))
        })
        .collect();
    silent.iter().for_each(|line| note(line));
    if silent.is_empty() {
        Status::Success
    } else {
        Status::Failed
    }
}

/// Returns the selected GPUs; none without a driver.
fn read(nvml: &Result<Nvml, NvmlAbsent>, id: &[String]) -> Result<Vec<Gpu>, Stop> {
    let nvml = match nvml {
        Ok(nvml) => nvml,
        Err(absent) if !id.is_empty() => {
            return Err(Stop::new(
                Status::CannotRun,
                format!("`-i` names a GPU, but no GPU can be read: {absent}"),
            ));
        }
        Err(_) => return Ok(Vec::new()),
    };
    let (nvml, patience) = (*nvml, Patience::default());
    let uncounted = |why| {
        let text = format!("the driver does not say how many GPUs there are: {why}");
        Stop::new(Status::Failed, text)
    };
    if id.is_empty() {
        return read_gpus(nvml, Which::All, &patience).map_err(uncounted);
    }
    let names = id.to_vec();
    let selected = patience.wait(move || machine::named_gpus(&nvml, &names));
    let indices = selected.map_err(|why| Stop::new(Status::Failed, why))??;
    read_gpus(nvml, Which::Indices(indices), &patience).map_err(uncounted)
}

fn show(
    args: &Args,
    gpus: &[Gpu],
    absent: Option<&NvmlAbsent>,
    moment: &jiff::Zoned,
) -> Result<(), Stop> {
    let no_gpu = absent
        .map(|absent| without_controls(&format!("No GPU can be read: {absent}.")) + "\n")
        .unwrap_or_default();
    if args.csv {
        return print(&csv(gpus)?);
    }
    if args.json {
        return print_json(&json(gpus, absent, moment));
    }
    if args.words {
        return print(&(meaning(gpus, &host::read()) + &no_gpu + &host_words(&host::read())));
    }
    if absent.is_some() {
        return print(&(host_text(&host_items(&host::read())) + "\n" + &no_gpu));
    }
    print(&text(gpus, moment, Naming::Full))?;
    if args.host {
        print(&host_text(&host_items(&host::read())))?;
    }
    if stderr_is_terminal() && stdout_is_terminal() {
        // On a terminal the explanation follows the page, on standard error so that a pipe does not
        // receive it.
        note_page(&meaning(gpus, &host::read()));
    }
    Ok(())
}

/// The sentences about each GPU, with the likely causes of a low utilization.
fn meaning(gpus: &[Gpu], host: &HostFacts) -> String {
    let about = |gpu: &Gpu| words(std::slice::from_ref(gpu)) + &low_utilization(gpu, host);
    gpus.iter().map(about).collect()
}

fn csv(gpus: &[Gpu]) -> Result<String, Stop> {
    let failed = |error: &dyn std::fmt::Display| {
        Stop::new(
            Status::Failed,
            format!("the table could not be written: {error}"),
        )
    };
    let line = |cells: [&str; 6]| line(cells).map_err(|error| failed(&error));
    let mut table = line(["device", "section", "field", "value", "unit", "reason"])?;
    let snapshots =
        std::iter::once(host_snapshot(&host::read())).chain(gpus.iter().map(gpu_snapshot));
    for Snapshot { device, entries } in snapshots {
        for entry in entries {
            let (value, reason) = (
                entry.value.value().cloned().unwrap_or_default(),
                entry.value.reason().unwrap_or_default(),
            );
            table += &line([
                device.as_str(),
                entry.section,
                &entry.field,
                &value,
                entry.unit,
                &reason,
            ])?;
        }
    }
    Ok(table)
}

fn json(gpus: &[Gpu], absent: Option<&NvmlAbsent>, moment: &jiff::Zoned) -> String {
    let gpus: Vec<_> = gpus
        .iter()
        .map(|gpu| json!({"device": name_of(gpu), "readings": items_json(&items(gpu))}))
        .collect();
    let page = json!({
        "kiln_snapshot": 1,
        "time": moment.timestamp().to_string(),
        "no_gpu_because": absent.map(ToString::to_string),
        HOST: items_json(&host_items(&host::read())),
        "gpus": gpus,
    });
    format!("{page:#}\n")
}

fn list() -> String {
    let properties = properties();
    let width = properties
        .iter()
        .map(|(name, ..)| name.len())
        .max()
        .unwrap_or(0);
    let line = |(name, unit, meaning): &(&str, &str, &str)| {
        format!("{name:width$}  {unit:7}  {meaning}\n")
    };
    properties.iter().map(line).collect()
}
