//! Makes one HTML page with tables and pictures of one or several runs, in a single file.
//!
//! Everything from a table is escaped by the template engine; the pictures escape their own words.
//! The page forbids every program but its own.

mod record;
mod settings;
mod table;
mod texts;

use askama::Template;
use base64::{Engine, prelude::BASE64_STANDARD};
use kiln_core::units::few;
use sha2::{Digest, Sha256};

use self::{
    record::{Differences, RunPart, differences, unlike},
    settings::SettingRow,
    table::PointTable,
    texts::Texts,
};
use super::{
    chart::{Chart, ChartValues, dark_rules},
    diagnosis::{RuleFinding, diagnose_run},
    findings::{WordedFinding, told},
    run_settings::{RunSettings, complete_experiment},
    subject::Subject,
    views::{Gallery, RunView, Spots},
};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("table.js"), include_str!("plots.js"));
/// Largest number of findings on a page; the first are the most costly.
const MOST_TOLD: usize = 20;
/// Most runs that a notice names.
const MOST_NAMED: usize = 5;

/// Id of the section whose pictures show one thing by several clocks.
const CURVES: &str = "curves";

/// Everything shown of some runs, computed once for the page and for the picture files.
#[derive(Debug)]
pub struct Album<'a> {
    subjects: &'a [Subject<'a>],
    runs: Vec<RunView<'a>>,
    gallery: Gallery,
}

impl<'a> Album<'a> {
    /// Reads the series that lie beside the tables, as far as they are shown.
    pub fn of(subjects: &'a [Subject<'a>]) -> Self {
        let labels = record::labels(subjects);
        let run = |(subject, label): (&Subject<'a>, String)| RunView {
            file: subject.run,
            objective: subject.objective(),
            settings: subject.experiment.and_then(complete_experiment),
            folder: subject.folder,
            ..RunView::new(label, subject.table)
        };
        let runs: Vec<RunView<'a>> = subjects.iter().zip(labels).map(run).collect();
        let gallery = Gallery::of(&runs);
        Self {
            subjects,
            runs,
            gallery,
        }
    }

    /// Returns the complete page.
    pub fn html(&self) -> String {
        let findings: Vec<Vec<RuleFinding>> = self
            .subjects
            .iter()
            .map(|subject| diagnose_run(*subject))
            .collect();
        let spots = Spots::of(&self.runs);
        let mut all = self.told(&findings);
        let untold = all.len().saturating_sub(MOST_TOLD);
        all.truncate(MOST_TOLD);
        let mut faults = self.gallery.faults.clone();
        let runs = self
            .subjects
            .iter()
            .zip(&self.runs)
            .map(|(subject, run)| RunPart::of(subject, run, &mut faults))
            .collect();
        let texts = Texts::of(&self.runs, &mut faults);
        let page = HtmlPage {
            title: record::title(&self.runs),
            version: env!("CARGO_PKG_VERSION"),
            style: STYLE,
            dark: dark_rules(),
            script: SCRIPT,
            script_hash: BASE64_STANDARD.encode(Sha256::digest(SCRIPT.as_bytes())),
            runs,
            differences: differences(&self.runs),
            settings: settings::differing(&self.settings()),
            told: all,
            untold,
            notices: self.notices(&findings),
            table: PointTable::of(&self.runs, &spots),
            galleries: self.galleries(),
            texts,
            hardware: self.hardware(),
            faults,
        };
        // Writing into a text cannot fail.
        page.render().unwrap_or_default()
    }

    /// Each picture with a file name of its own.
    pub fn pictures(&self) -> Vec<(String, String)> {
        let mut taken = std::collections::HashSet::new();
        let name = |chart: &Chart| -> String {
            let plain = |letter: char| {
                if letter.is_ascii_alphanumeric() || ".-_".contains(letter) {
                    letter
                } else {
                    '-'
                }
            };
            chart.name.chars().map(plain).take(100).collect()
        };
        let mut free = |name: String| {
            let mut file = format!("{name}.svg");
            let mut number = 1;
            while !taken.insert(file.clone()) {
                number += 1;
                file = format!("{name}-{number}.svg");
            }
            file
        };
        self.gallery
            .charts()
            .map(|chart| (free(name(chart)), chart.svg()))
            .collect()
    }

    /// Series that could not be read for the pictures.
    pub fn faults(&self) -> &[String] {
        &self.gallery.faults
    }

    fn settings(&self) -> Vec<RunSettings> {
        let of = |(subject, run): (&Subject<'_>, &RunView<'_>)| {
            let written = subject.experiment.and_then(RunSettings::of);
            written.unwrap_or_else(|| settings::of_table(run))
        };
        self.subjects.iter().zip(&self.runs).map(of).collect()
    }

    fn told(&self, findings: &[Vec<RuleFinding>]) -> Vec<WordedFinding> {
        let of = |((subject, run), findings): ((&Subject<'_>, &RunView<'_>), &Vec<RuleFinding>)| {
            let head = subject.next_head();
            let worded = told(findings, subject.ended()).into_iter();
            let mut worded: Vec<WordedFinding> =
                worded.map(|finding| finding.below(&head)).collect();
            if self.runs.len() > 1 {
                worded
                    .iter_mut()
                    .for_each(|finding| finding.head = format!("{}: {}", run.label, finding.head));
            }
            worded
        };
        let runs = self.subjects.iter().zip(&self.runs);
        runs.zip(findings).flat_map(of).collect()
    }

    /// Notices on all runs, then those on each: one that several runs have stands once.
    fn notices(&self, findings: &[Vec<RuleFinding>]) -> Vec<String> {
        let of = |((subject, run), findings): ((&Subject<'_>, &RunView<'_>), &Vec<RuleFinding>)| {
            let lines = subject.notices(findings).into_iter();
            lines
                .map(|line| (run.label.clone(), line))
                .collect::<Vec<_>>()
        };
        let runs = self.subjects.iter().zip(&self.runs);
        let named = |(labels, line): (Vec<String>, String)| match self.runs.len() > 1 {
            true => format!("{}: {line}", few(&labels, MOST_NAMED)),
            false => line,
        };
        let of_runs = grouped(runs.zip(findings).flat_map(of));
        unlike(&self.runs)
            .into_iter()
            .chain(of_runs.into_iter().map(named))
            .collect()
    }

    fn galleries(&self) -> Vec<Pictures> {
        let gallery = &self.gallery;
        let all = [
            ("axes", "Against each axis", &gallery.against),
            ("field", "Two axes at once", &gallery.fields),
            (
                "equal-samples",
                "Loss at equal samples",
                &gallery.equal_samples,
            ),
            ("batches", "Steps against samples", &gallery.batches),
            ("layers", "Gradient noise of layer groups", &gallery.layers),
            (CURVES, "Loss curves", &gallery.curves),
            ("memory", "Memory", &gallery.memory),
        ];
        let filled = all.into_iter().filter(|(_, _, charts)| !charts.is_empty());
        filled
            .map(|(id, title, charts)| Pictures {
                id,
                title,
                is_switched: id == CURVES && charts.len() > 1,
                pictures: charts.iter().map(PagePicture::of).collect(),
            })
            .collect()
    }

    fn hardware(&self) -> Vec<TrialPart> {
        let part = |series: &super::views::TrialSeries| TrialPart {
            name: format!(
                "Trial {} ({}), {}",
                series.trial, series.name, series.outcome
            ),
            pictures: series.charts.iter().map(PagePicture::of).collect(),
        };
        self.gallery.hardware.iter().map(part).collect()
    }
}

/// The notices of runs, each given with the run's label: each once, with the labels of its runs.
fn grouped(notices: impl Iterator<Item = (String, String)>) -> Vec<(Vec<String>, String)> {
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for (label, line) in notices {
        match groups.iter_mut().find(|(_, known)| *known == line) {
            Some((labels, _)) if labels.contains(&label) => {}
            Some((labels, _)) => labels.push(label),
            None => groups.push((vec![label], line)),
        }
    }
    groups
}

#[derive(Template)]
#[template(path = "page.html")]
struct HtmlPage<'a> {
    title: String,
    version: &'static str,
    style: &'static str,
    dark: String,
    script: &'static str,
    script_hash: String,
    runs: Vec<RunPart<'a>>,
    differences: Vec<Differences>,
    settings: Vec<SettingRow>,
    told: Vec<WordedFinding>,
    untold: usize,
    notices: Vec<String>,
    table: PointTable,
    galleries: Vec<Pictures>,
    texts: Texts,
    hardware: Vec<TrialPart>,
    faults: Vec<String>,
}

/// Pictures under a heading.
struct Pictures {
    id: &'static str,
    title: &'static str,
    /// Whether one picture is shown at a time.
    is_switched: bool,
    pictures: Vec<PagePicture>,
}

struct PagePicture {
    title: String,
    svg: String,
    values: ChartValues,
    caption: String,
}

impl PagePicture {
    fn of(chart: &Chart) -> Self {
        Self {
            title: chart.title.clone(),
            svg: chart.svg(),
            values: chart.values(),
            caption: chart.caption.clone(),
        }
    }
}

/// The readings of one trial.
struct TrialPart {
    name: String,
    pictures: Vec<PagePicture>,
}

#[cfg(test)]
mod tests;
