//! Reads `nvidia-smi -q` text. Indentation marks sections; the first ` :` separates label and cell,
//! in any column.

use super::{Moment, Node, Page};

/// A line of a full capture above and below each section's title.
const RULE: &str = "################";

/// The log in a capture: that of the moment in a full capture, else the first.
pub(super) fn log_of(capture: &str, moment: Moment) -> Option<&str> {
    let name = match moment {
        Moment::Idle => "# idle :: query (-q)",
        Moment::Load => "# load :: query (-q)",
    };
    let start = section(capture, name).unwrap_or(capture);
    let log = start.get(start.find("NVSMI LOG")?..)?;
    let log = log.get(log.find('\n')? + 1..)?;
    let end = [RULE, "=NVSMI LOG="]
        .iter()
        .filter_map(|mark| log.find(mark))
        .min();
    let log = log.get(..end.unwrap_or(log.len()))?;
    // The beginning of the line with the mark is not part of the log.
    Some(if end.is_some() {
        log.get(..log.rfind('\n').map_or(0, |at| at + 1))?
    } else {
        log
    })
}

/// The text after a section's title in a full capture, up to the next title.
pub(super) fn section<'a>(capture: &'a str, title: &str) -> Option<&'a str> {
    let start = capture.find(title)?;
    let after = capture.get(start..)?;
    let body = after.get(after.find(RULE)?..)?;
    let body = body.get(body.find('\n')? + 1..)?;
    body.get(..body.find(RULE).unwrap_or(body.len()))
}

pub(super) fn read(log: &str) -> Page {
    let mut page = Page::default();
    let lines: Vec<Line> = log.lines().filter_map(line).collect();
    let mut rest = lines.as_slice();
    while let Some((first, after)) = rest.split_first() {
        let below = after
            .iter()
            .take_while(|line| line.indent > first.indent)
            .count();
        let (inside, next) = after.split_at(below);
        let mut node = Node::new(&first.label, first.cell.clone());
        node.children = nodes(inside);
        match node.label.strip_prefix("GPU ") {
            Some(bus_id) if node.cell.is_none() => {
                node.label = bus_id.to_owned();
                page.gpus.push(node);
            }
            _ => page.head.push(node),
        }
        rest = next;
    }
    page
}

struct Line {
    indent: usize,
    label: String,
    cell: Option<String>,
}

/// `None` for an empty line and for what is around a log: comments, a prompt.
fn line(line: &str) -> Option<Line> {
    let trimmed = line.trim_start();
    if trimmed.is_empty() || trimmed.starts_with(['#', '=', '`']) {
        return None;
    }
    let indent = line.len() - trimmed.len();
    // A label as long as its column has the colon right behind it.
    Some(
        match trimmed
            .split_once(" :")
            .or_else(|| trimmed.split_once(": "))
        {
            Some((label, cell)) => Line {
                indent,
                label: label.trim_end().to_owned(),
                cell: Some(cell.trim().to_owned()),
            },
            None => Line {
                indent,
                label: trimmed.trim_end().to_owned(),
                cell: None,
            },
        },
    )
}

fn nodes(mut lines: &[Line]) -> Vec<Node> {
    let mut found = Vec::new();
    while let Some((first, after)) = lines.split_first() {
        let below = after
            .iter()
            .take_while(|line| line.indent > first.indent)
            .count();
        let (inside, next) = after.split_at(below);
        found.push(Node {
            label: first.label.clone(),
            cell: first.cell.clone(),
            children: nodes(inside),
        });
        lines = next;
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    const LOG: &str = "\
==============NVSMI LOG==============

Driver Version                            : 1.2

Attached GPUs                             : 1
GPU 00000000:83:00.0
    Product Name                          : A: board
    Clocks Event Reasons
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
        Sync Boost                        : Not Active
    Chassis                               :
    Processes                             : None

####################
";

    #[test]
    fn indentation_makes_the_tree() {
        let page = read(log_of(LOG, Moment::Load).unwrap());
        assert_eq!(
            (page.driver(), page.branch(), page.gpus.len()),
            ("1.2", 1, 1)
        );
        let gpu = &page.gpus[0];
        assert_eq!(gpu.label, "00000000:83:00.0");
        assert_eq!(gpu.cell_at("Product Name"), Some("A: board"));
        assert_eq!(
            gpu.cell_at("Clocks Event Reasons > HW Slowdown"),
            Some("Active")
        );
        assert_eq!(
            gpu.cell_at("Clocks Event Reasons > HW Slowdown > HW Thermal Slowdown"),
            Some("Not Active")
        );
        assert_eq!(
            gpu.cell_at("Clocks Event Reasons > Sync Boost"),
            Some("Not Active")
        );
        assert_eq!(
            (gpu.cell_at("Chassis"), gpu.cell_at("Processes")),
            (Some(""), Some("None"))
        );
        assert_eq!(gpu.cells().len(), 6);
    }
}
