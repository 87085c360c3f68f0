//! Pages of boards that nobody has seen: every capture with one cell after the other replaced by a
//! word for what is absent. The page of `kiln snapshot` must have the word where it was put, and
//! nothing else there that the unchanged page does not have.
//!
//! A page of as many GPUs as there are cells is played at once, each GPU with one cell replaced.
//! The short form takes each label only where it is new: the first capture that has a value there,
//! and the first that has none.

use std::collections::{HashMap, HashSet};

use fake_nvml::convert::{self, Moment, Node, Page, Prefer};

use super::{Driver, captures, labels::Cell, labels::Labels};
use crate::form;

const WORDS: [&str; 3] = ["N/A", "Insufficient Permissions", "Unknown Error"];

/// Cells that are not what one call answered, and so cannot be absent by themselves.
const EXEMPT: [&str; 8] = [
    // Their structure has no word for unknown.
    "Platform Info > Chassis Serial Number",
    "Platform Info > GPU Fabric GUID",
    // The call of `Current` answers it.
    "PCI > GPU Link Info > PCIe Generation > Device Current",
    // Withdrawn: kiln does not ask.
    "Display Mode",
    // The position in a list.
    "MIG Device > Index",
    // Names and kinds come from lists of the whole machine.
    "Processes",
    // The GPU's name on the page.
    "PCI > Bus Id",
    // A state of its own among the words of the fabric's status.
    "Fabric > Status",
];

/// Whole lines come and go with these: which instances there are, which counts a board has.
const LAYOUT: [&str; 3] = ["MIG Mode > Current", "Product Architecture", "Driver Model"];

#[test]
fn real_captures_with_a_cell_that_is_absent_make_up_no_other() {
    let driver = Driver::new();
    let mut known = HashSet::new();
    let mut differences = Vec::new();
    for capture in captures()
        .into_iter()
        .filter(|capture| capture.moment == Moment::Load)
    {
        let page = convert::page(&capture.text, capture.moment).unwrap();
        let labels = Labels::of_branch(page.branch());
        let mut is_new = |cell: &Cell| {
            let brought = labels.bring(cell).map(|(path, _)| path);
            known.insert((cell.0.clone(), brought, WORDS.contains(&cell.1.as_str())))
        };
        let cells = page.gpus.first().map(Node::cells).unwrap_or_default();
        let chosen: Vec<usize> = (0..cells.len())
            .filter(|at| is_new(&cells[*at]) || form::is_long())
            .collect();
        let found = WORDS
            .iter()
            .flat_map(|word| differences_of(&driver, &page, &labels, &chosen, word));
        differences.extend(found.map(|found| format!("{}: {found}", capture.name)));
    }
    assert!(known.len() > 100, "{} labels", known.len());
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// What is wrong where one of the `chosen` cells is this word.
fn differences_of(
    driver: &Driver,
    page: &Page,
    labels: &Labels,
    chosen: &[usize],
    word: &str,
) -> Vec<String> {
    let Some(gpu) = page.gpus.first().filter(|_| !chosen.is_empty()) else {
        return Vec::new();
    };
    let cells = gpu.cells();
    let mutants = chosen.iter().map(|at| replaced(gpu, *at, word));
    let text = written(page, std::iter::once(gpu.clone()).chain(mutants));
    let scenario = convert::scenario(&text, Moment::Load, Prefer::Text).unwrap();
    let printed = convert::page(&driver.snapshot(&scenario), Moment::Load).unwrap();
    assert_eq!(printed.gpus.len(), chosen.len() + 1);
    let plain = by_label(&printed.gpus[0]);
    let mut found = Vec::new();
    for (at, ours) in chosen.iter().zip(&printed.gpus[1..]) {
        let (path, cell) = &cells[*at];
        let is_of = |list: &[&str]| {
            list.iter()
                .any(|label| path == *label || path.starts_with(&format!("{label} >")))
        };
        if cell == word || is_of(&EXEMPT) {
            continue;
        }
        let nth = cells[..*at]
            .iter()
            .filter(|(other, _)| other == path)
            .count();
        let ours = by_label(ours);
        if let Some(expected) = labels.bring(&(path.clone(), word.to_owned()))
            && !has(&ours, &expected, nth)
        {
            found.push(format!(
                "`{path}`, `{cell}` replaced by `{word}`, is printed as {:?}",
                ours.get(&expected.0)
            ));
        }
        if !is_of(&LAYOUT) {
            found.extend(
                made_up(&plain, &ours, word)
                    .into_iter()
                    .map(|other| format!("`{path}` replaced by `{word}`: {other}")),
            );
        }
    }
    found
}

/// The word at the label, or at a heading above it that stands for all of its lines, or at the
/// lines that the label stands for.
fn has(ours: &HashMap<String, Vec<String>>, (path, word): &Cell, nth: usize) -> bool {
    let is_word = |cells: &Vec<String>, at: usize| cells.get(at) == Some(word);
    let below = ours
        .iter()
        .filter(|(label, _)| label.starts_with(&format!("{path} > ")))
        .collect::<Vec<_>>();
    let above = path
        .match_indices(" > ")
        .filter_map(|(end, _)| ours.get(&path[..end]));
    ours.get(path).is_some_and(|cells| is_word(cells, nth))
        || above.into_iter().any(|cells| is_word(cells, 0))
        || below.iter().any(|(_, cells)| is_word(cells, 0))
}

/// Cells that the unchanged page does not have. A call that is absent may take the other cells it
/// answers with it.
fn made_up(
    plain: &HashMap<String, Vec<String>>,
    ours: &HashMap<String, Vec<String>>,
    word: &str,
) -> Vec<String> {
    let none = Vec::new();
    let mut found = Vec::new();
    for (path, cells) in ours {
        let before = plain.get(path).unwrap_or(&none);
        for (at, cell) in cells.iter().enumerate() {
            if before.get(at) != Some(cell) && cell != word && cell != "N/A" {
                found.push(format!(
                    "`{path}` became `{cell}`, it was {:?}",
                    before.get(at)
                ));
            }
        }
    }
    found
}

fn by_label(gpu: &Node) -> HashMap<String, Vec<String>> {
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    for (path, cell) in gpu.cells() {
        found.entry(path).or_default().push(cell);
    }
    found
}

/// The block with the cell at this position replaced.
fn replaced(gpu: &Node, at: usize, word: &str) -> Node {
    fn walk(node: &mut Node, left: &mut usize, word: &str) {
        for child in &mut node.children {
            if let Some(cell) = &mut child.cell {
                if *left == 0 {
                    word.clone_into(cell);
                }
                *left = left.wrapping_sub(1);
            }
            walk(child, left, word);
        }
    }
    let mut gpu = gpu.clone();
    walk(&mut gpu, &mut { at }, word);
    gpu
}

/// A page as text.
fn written(page: &Page, gpus: impl Iterator<Item = Node>) -> String {
    fn lines(node: &Node, depth: usize, into: &mut String) {
        let cell = node
            .cell
            .as_ref()
            .map(|cell| format!(" : {cell}"))
            .unwrap_or_default();
        into.push_str(&format!(
            "{:indent$}{}{cell}\n",
            "",
            node.label,
            indent = depth * 4
        ));
        node.children
            .iter()
            .for_each(|child| lines(child, depth + 1, into));
    }
    let mut text = String::from("NVSMI LOG\n");
    page.head.iter().for_each(|head| lines(head, 0, &mut text));
    for mut gpu in gpus {
        gpu.label = format!("GPU {}", gpu.label);
        lines(&gpu, 0, &mut text);
    }
    text
}
