//! `docs/nvidia-smi-labels.csv`: what a page of an older or newer driver would say in the layout
//! that `kiln snapshot` prints. In come the cells of a page, out go the same cells as driver 590
//! would print them, and which further cells are allowed.

use std::collections::HashMap;

/// The new cell of a label that newer pages have, whose call also answers another label.
const ANY: &str = "*";

/// The new cell of what a driver does not say.
const ABSENT: &str = "N/A";

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    branches: (u32, u32),
    action: String,
    label: String,
    new_label: String,
    cell: String,
    new_cell: String,
}

/// The table's lines for one driver branch.
pub(crate) struct Labels {
    rules: Vec<Rule>,
}

/// A path of labels and what is printed there.
pub(crate) type Cell = (String, String);

impl Labels {
    pub(crate) fn of_branch(branch: u32) -> Self {
        let rules = all()
            .into_iter()
            .filter(|rule| (rule.branches.0..=rule.branches.1).contains(&branch))
            .collect();
        Self { rules }
    }

    fn with<'a>(&'a self, action: &'a str) -> impl Iterator<Item = &'a Rule> {
        self.rules.iter().filter(move |rule| rule.action == action)
    }

    /// A cell in the layout of driver 590; `None` if that layout does not have it.
    pub(crate) fn bring(&self, (path, cell): &Cell) -> Option<Cell> {
        if self.with("removed").any(|rule| rule.covers(path)) {
            return None;
        }
        let (mut path, mut cell) = (path.clone(), cell.clone());
        if let Some(rule) = self
            .with("rename")
            .find(|rule| rule.covers(&path) && (rule.cell.is_empty() || rule.cell == cell))
        {
            path = format!("{}{}", rule.new_label, &path[rule.label.len()..]);
            if !rule.new_cell.is_empty() {
                cell.clone_from(&rule.new_cell);
            }
        }
        if let Some(rule) = self.with("cut").find(|rule| rule.covers(&path)) {
            cell.truncate(cell.find(&rule.cell).unwrap_or(cell.len()));
        }
        if let Some(rule) = self.with("no_call").find(|rule| rule.covers(&path)) {
            cell.clone_from(&rule.new_cell);
        }
        Some((path, cell))
    }

    /// Whether the older driver's page could not have this cell.
    pub(crate) fn is_added(&self, (path, cell): &Cell) -> bool {
        let is_allowed =
            |rule: &Rule| rule.covers(path) && (rule.new_cell == ANY || &rule.new_cell == cell);
        self.with("added")
            .chain(self.with("no_call"))
            .any(is_allowed)
    }

    /// Whether one driver's cell may be another's, for cells at the same label; `page` has all
    /// cells of the real one.
    pub(crate) fn is_same(
        &self,
        path: &str,
        ours: &[String],
        page: &HashMap<String, Vec<String>>,
    ) -> bool {
        let Some(real) = page.get(path) else {
            return false;
        };
        let is_value = |rule: &&Rule, real: &String, ours: &String| {
            rule.covers(path) && &rule.cell == real && &rule.new_cell == ours
        };
        let is_pair = |(real, ours): (&String, &String)| {
            real == ours
                || self.with("value").any(|rule| {
                    is_value(&rule, real, ours)
                        && (ours != ABSENT || self.is_empty_section(path, page))
                })
        };
        real.len() == ours.len() && real.iter().zip(ours).all(is_pair)
    }

    /// Whether all cells of the section that may be absent have their `value`: a structure nobody
    /// filled.
    fn is_empty_section(&self, path: &str, page: &HashMap<String, Vec<String>>) -> bool {
        let section = path.split(" > ").next();
        let mut labels = self
            .with("value")
            .filter(|rule| rule.label.split(" > ").next() == section)
            .map(|rule| &rule.label);
        let is_empty = |label: &String, cell: &String| {
            cell == ABSENT
                || self.with("value").any(|rule| {
                    rule.new_cell == ABSENT && &rule.label == label && &rule.cell == cell
                })
        };
        labels.all(|label| {
            page.get(label)
                .is_none_or(|cells| cells.iter().all(|cell| is_empty(label, cell)))
        })
    }

    pub(crate) fn has_no_call(&self, path: &str) -> bool {
        self.with("no_call").any(|rule| rule.covers(path))
    }
}

impl Rule {
    /// A label stands for itself and for everything below it.
    fn covers(&self, path: &str) -> bool {
        path.strip_prefix(self.label.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(" > "))
    }
}

pub(crate) fn all() -> Vec<Rule> {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/nvidia-smi-labels.csv");
    let mut reader = csv::Reader::from_path(table).unwrap();
    let rule = |record: csv::StringRecord| {
        let number = |at: usize, otherwise: u32| {
            if record[at].is_empty() {
                otherwise
            } else {
                record[at].parse().unwrap()
            }
        };
        Rule {
            branches: (number(0, 0), number(1, u32::MAX)),
            action: record[2].to_owned(),
            label: record[3].to_owned(),
            new_label: record[4].to_owned(),
            cell: record[5].to_owned(),
            new_cell: record[6].to_owned(),
        }
    };
    reader
        .records()
        .map(|record| rule(record.unwrap()))
        .collect()
}

#[test]
fn the_table_has_known_actions_and_few_fields_without_a_call() {
    let rules = all();
    let actions = ["no_call", "rename", "added", "removed", "cut", "value"];
    assert!(
        rules
            .iter()
            .all(|rule| actions.contains(&rule.action.as_str())),
        "{rules:?}"
    );
    assert!(
        rules
            .iter()
            .all(|rule| (rule.action == "rename") != rule.new_label.is_empty()),
        "{rules:?}"
    );
    let without_call = rules.iter().filter(|rule| rule.action == "no_call").count();
    assert!((1..=15).contains(&without_call), "{without_call}");
}

#[test]
fn a_structure_is_empty_only_as_a_whole() {
    let labels = Labels::of_branch(580);
    let page = |slot: &str| {
        let cells = [("Slot Number", slot), ("Host ID", "1"), ("Tray Index", "0")];
        cells
            .map(|(label, cell)| (format!("Platform Info > {label}"), vec![cell.to_owned()]))
            .into_iter()
            .collect::<HashMap<_, _>>()
    };
    let host = ("Platform Info > Host ID", ["N/A".to_owned()]);
    assert!(
        labels.is_same(host.0, &host.1, &page("0")) && !labels.is_same(host.0, &host.1, &page("3"))
    );
}

#[test]
fn old_labels_are_brought_to_the_new_layout() {
    let cell = |path: &str, cell: &str| (path.to_owned(), cell.to_owned());
    let old = Labels::of_branch(566);
    assert_eq!(
        old.bring(&cell("Display Mode", "Disabled")),
        Some(cell("Display Attached", "No"))
    );
    assert_eq!(old.bring(&cell("Voltage > Graphics", "630.000 mV")), None);
    assert!(old.is_added(&cell("FRU Part Number", "N/A")));
    assert!(old.is_added(&cell("GPU PDI", "N/A")) && !old.is_added(&cell("GPU PDI", "0x1")));
    let new = Labels::of_branch(610);
    assert_eq!(
        new.bring(&cell("CUDA Version", "13.3 [Deprecated; x]")),
        Some(cell("CUDA Version", "13.3"))
    );
    let limit = "GPU Power Readings > GPU Ceiling Power Limit > Current Power Limit";
    assert_eq!(
        new.bring(&cell(limit, "1 W")),
        Some(cell("GPU Power Readings > Current Power Limit", "1 W"))
    );
    assert_eq!(
        Labels::of_branch(590).bring(&cell("Serial Number", "1")),
        Some(cell("Serial Number", "1"))
    );
}
