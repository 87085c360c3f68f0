//! The page of `kiln data show`: lines about the data, then tables of its two parts.

use std::path::Path;

use kiln_core::{
    kinds::text_of,
    units::{Fraction, few, significant, without_controls},
};
use kiln_data::{
    overview::{
        ClassOverview, DataOverview, ImagesOverview, Lengths, PairsOverview, PairsPart,
        PartsOverview, TextOverview,
    },
    panel::{ColumnOverview, PanelOverview},
};

use super::ShownData;
use crate::output::table::TextTable;

/// Most files, symbols or classes that a line names; the others are counted.
const MOST_NAMED: usize = 8;
/// Most classes of the table; JSON has all.
const MOST_CLASSES: usize = 40;

/// A cell without a value.
const NOTHING: &str = "–";

/// The lines and tables of one sort of data.
struct Section {
    lines: Vec<String>,
    tables: Vec<TextTable>,
}

pub(super) fn page(shown: &ShownData<'_>) -> String {
    let data = &shown.data;
    let of_parts = match &data.parts {
        PartsOverview::Text(text) => of_text(data, text),
        PartsOverview::Images(images) => of_images(images),
        PartsOverview::Panel(panel) => of_panel(data, panel),
        PartsOverview::Pairs(pairs) => of_pairs(pairs),
    };
    let mut lines = vec![format!("data of {}: {}", shown.name, data.kind)];
    lines.extend(of_point(shown));
    lines.push(match data.read_from.as_slice() {
        [] => "read from: no file; kiln generates the data".to_owned(),
        files => format!("read from: {}", names_of(files)),
    });
    lines.push(format!("validation: {}", data.validation));
    lines.push(format!("left out: {}", left_out(data)));
    lines.extend(in_both(data));
    lines.extend(of_parts.lines);
    lines.extend(
        data.notice
            .as_ref()
            .map(|notice| format!("notice: {notice}")),
    );
    let lines = lines.iter().map(|line| without_controls(line) + "\n");
    let tables = of_parts.tables.iter();
    let tables = tables.map(|table| format!("\n{}\n", table.text()));
    lines.chain(tables).collect()
}

/// The paths of files; of several in one folder the folder, then their names.
fn names_of(files: &[String]) -> String {
    let split = |file: &String| {
        let path = Path::new(file);
        let (folder, name) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
        Some((folder.to_owned(), name.to_owned()))
    };
    let (folders, names): (Vec<String>, Vec<String>) = files.iter().filter_map(split).unzip();
    match folders.first() {
        Some(folder)
            if files.len() > 1
                && names.len() == files.len()
                && !folder.is_empty()
                && folders.iter().all(|other| other == folder) =>
        {
            format!("{folder} ({})", few(&names, MOST_NAMED))
        }
        _ => few(files, MOST_NAMED),
    }
}

/// Which point of a sweep is shown, if points have different data.
fn of_point(shown: &ShownData<'_>) -> Option<String> {
    let axes = shown.axes.iter();
    let axes: Vec<String> = axes
        .map(|(key, value)| format!("{key} = {}", text_of(value)))
        .collect();
    let keys = match axes.len() {
        0 => return None,
        1 => "this key",
        _ => "these keys",
    };
    Some(format!(
        "first point of the sweep: {}; other points have other values of {keys}",
        axes.join(", ")
    ))
}

fn left_out(data: &DataOverview) -> String {
    let parts = data.left_out.iter();
    let parts: Vec<String> = parts
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    match parts.is_empty() {
        true => "nothing".to_owned(),
        false => parts.join("; "),
    }
}

fn in_both(data: &DataOverview) -> Option<String> {
    let seen = data.valid_samples_in_train?;
    let (noun, all) = match &data.parts {
        PartsOverview::Images(images) => ("images", images.valid_images),
        PartsOverview::Pairs(pairs) => ("rows", pairs.valid.rows),
        PartsOverview::Text(_) | PartsOverview::Panel(_) => return None,
    };
    Some(format!(
        "in both parts: {} validation {noun} are also training {noun}",
        share_of(seen, all)
    ))
}

/// `2 of 8 (25.0 %)`.
fn share_of(count: u64, all: u64) -> String {
    match all {
        0 => format!("{count} of 0"),
        _ => format!("{count} of {all} ({})", percent(count as f64 / all as f64)),
    }
}

/// A fraction of 1 in percent. One above 0 never prints as 0.
fn percent(share: f64) -> String {
    let text = Fraction(share).to_string();
    match share > 0.0 && text == Fraction(0.0).to_string() {
        true => "< 0.1 %".to_owned(),
        false => text,
    }
}

/// The share of a class, or of cut rows, in their part.
fn share(count: u64, all: u64) -> String {
    match all {
        0 => NOTHING.to_owned(),
        _ => percent(count as f64 / all as f64),
    }
}

fn cell(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// A table with a row per number and a column per part.
fn parts_table(rows: Vec<[String; 3]>) -> TextTable {
    let mut table = TextTable::plain(["", "train", "valid"]);
    table.align_right(1);
    for row in rows {
        table.add_row(row);
    }
    table
}

/// A row of [`parts_table`].
fn row(name: impl Into<String>, train: impl ToString, valid: impl ToString) -> [String; 3] {
    [name.into(), train.to_string(), valid.to_string()]
}

fn samples_of(data: &DataOverview) -> String {
    match data.seq_len {
        Some(seq_len) => format!("samples (seq_len {seq_len})"),
        None => "samples".to_owned(),
    }
}

fn of_text(data: &DataOverview, text: &TextOverview) -> Section {
    let TextOverview { train, valid, .. } = text;
    let tokenizer = match &text.tokenizer_file {
        Some(file) => serde_json::Value::from(file.as_str()),
        None => serde_json::to_value(text.tokenizer).unwrap_or_default(),
    };
    Section {
        lines: vec![
            format!(
                "tokens: {}, vocabulary {}",
                text_of(&tokenizer),
                text.vocabulary
            ),
            format!(
                "unknown: {} validation tokens do not occur in the training text",
                share_of(text.unknown_valid_tokens, valid.tokens)
            ),
        ],
        tables: vec![parts_table(vec![
            row("bytes", train.bytes, valid.bytes),
            row("characters", train.characters, valid.characters),
            row("tokens", train.tokens, valid.tokens),
            row(samples_of(data), cell(train.samples), cell(valid.samples)),
        ])],
    }
}

fn of_images(images: &ImagesOverview) -> Section {
    let shape = images.shape;
    let mut lines = vec![format!(
        "images: {} × {} × {} (channels, height, width), {} classes",
        shape.channels, shape.height, shape.width, shape.classes
    )];
    lines.extend(largest_class(images));
    lines.extend(empty_classes(images, "training", |class| {
        class.train_images
    }));
    lines.extend(empty_classes(images, "validation", |class| {
        class.valid_images
    }));
    let hidden = images.classes.len().saturating_sub(MOST_CLASSES);
    if hidden > 0 {
        lines.push(format!(
            "the table has the first {MOST_CLASSES} classes; `--format json` has {hidden} more"
        ));
    }
    Section {
        lines,
        tables: vec![classes_table(images)],
    }
}

/// The class with most images of both parts together; `None` for a single class.
fn largest_class(images: &ImagesOverview) -> Option<String> {
    let train = |class: &ClassOverview| class.train_images;
    let valid = |class: &ClassOverview| class.valid_images;
    let is_even = [are_equal(images, train), are_equal(images, valid)];
    if images.classes.len() < 2 {
        return None;
    }
    if is_even == [true, true] {
        return Some("all classes are equally large".to_owned());
    }
    // If several are equally large, the first one.
    let classes = images.classes.iter().rev();
    let largest = classes.max_by_key(|class| train(class) + valid(class))?;
    let of_part = |count: u64, all: u64, is_even: bool, part: &str| {
        let like_others = if is_even && all > 0 {
            " (like every class)"
        } else {
            ""
        };
        format!("{} of {part}{like_others}", share(count, all))
    };
    let [train_is_even, valid_is_even] = is_even;
    Some(format!(
        "largest class: {}, {}, {}",
        largest.name,
        of_part(
            largest.train_images,
            images.train_images,
            train_is_even,
            "training"
        ),
        of_part(
            largest.valid_images,
            images.valid_images,
            valid_is_even,
            "validation"
        )
    ))
}

/// Whether all classes have equally many images of a part.
fn are_equal(images: &ImagesOverview, count: impl Fn(&ClassOverview) -> u64) -> bool {
    let mut counts = images.classes.iter().map(count);
    let first = counts.next();
    counts.all(|count| Some(count) == first)
}

/// The classes without an image in a part that has others.
fn empty_classes(
    images: &ImagesOverview,
    part: &str,
    count: impl Fn(&ClassOverview) -> u64,
) -> Option<String> {
    let empty = images.classes.iter().filter(|class| count(class) == 0);
    let names: Vec<String> = empty.map(|class| class.name.clone()).collect();
    let has_others = names.len() < images.classes.len();
    (has_others && !names.is_empty())
        .then(|| format!("no {part} image of: {}", few(&names, MOST_NAMED)))
}

fn classes_table(images: &ImagesOverview) -> TextTable {
    let (train, valid) = (images.train_images, images.valid_images);
    let mut table = TextTable::plain(["class", "train", "share", "valid", "share"]);
    table.align_right(1);
    for class in images.classes.iter().take(MOST_CLASSES) {
        table.add_row([
            class.name.clone(),
            class.train_images.to_string(),
            share(class.train_images, train),
            class.valid_images.to_string(),
            share(class.valid_images, valid),
        ]);
    }
    table.add_row([
        "(all)".to_owned(),
        train.to_string(),
        String::new(),
        valid.to_string(),
        String::new(),
    ]);
    table
}

fn of_panel(data: &DataOverview, panel: &PanelOverview) -> Section {
    let PanelOverview { train, valid, .. } = panel;
    let dates = match panel.is_utc {
        true => "with offsets from UTC, shown in UTC",
        false => "without a time zone, as written",
    };
    let parts = parts_table(vec![
        row("rows", train.rows, valid.rows),
        row(
            "first date",
            cell(train.first_date.as_ref()),
            cell(valid.first_date.as_ref()),
        ),
        row(
            "last date",
            cell(train.last_date.as_ref()),
            cell(valid.last_date.as_ref()),
        ),
        row(samples_of(data), cell(train.samples), cell(valid.samples)),
    ]);
    let mut columns = TextTable::plain(["column", "used as", "mean", "min", "max"]);
    columns.align_right(2);
    for column in &panel.columns {
        columns.add_row([
            column.name.clone(),
            used_as(column).to_owned(),
            cell(column.mean.map(significant)),
            cell(column.min.map(significant)),
            cell(column.max.map(significant)),
        ]);
    }
    Section {
        lines: vec![
            format!(
                "symbols: {} ({})",
                panel.symbols.len(),
                few(&panel.symbols, MOST_NAMED)
            ),
            format!("dates: {dates}"),
        ],
        tables: vec![parts, columns],
    }
}

fn used_as(column: &ColumnOverview) -> &'static str {
    match (column.is_feature, column.is_target) {
        (true, true) => "feature, target",
        (false, true) => "target",
        _ => "feature",
    }
}

fn of_pairs(pairs: &PairsOverview) -> Section {
    let (train, valid) = (&pairs.train, &pairs.valid);
    let prompts = |part: &PairsPart| cell(part.prompt_tokens.map(three_lengths));
    let responses = |part: &PairsPart| cell(part.response_tokens.map(three_lengths));
    let cut_prompts = |part: &PairsPart| share_of(part.cut_prompts, part.rows);
    let cut_responses = |part: &PairsPart| share_of(part.cut_responses, part.rows);
    let unknown = |part: &PairsPart| cell(part.unknown_fraction.map(percent));
    let lengths = "tokens (min, median, max)";
    Section {
        lines: vec![format!("tokens: vocabulary {}", pairs.vocabulary)],
        tables: vec![parts_table(vec![
            row("rows", train.rows, valid.rows),
            row(format!("prompt {lengths}"), prompts(train), prompts(valid)),
            row(
                format!("response {lengths}"),
                responses(train),
                responses(valid),
            ),
            row(
                format!("prompts cut at {}", pairs.max_prompt_tokens),
                cut_prompts(train),
                cut_prompts(valid),
            ),
            row(
                format!("responses cut at {}", pairs.max_response_tokens),
                cut_responses(train),
                cut_responses(valid),
            ),
            row("unknown tokens", unknown(train), unknown(valid)),
        ])],
    }
}

fn three_lengths(lengths: Lengths) -> String {
    let Lengths { min, median, max } = lengths;
    format!("{min}, {median}, {max}")
}

#[cfg(test)]
mod tests {
    use kiln_core::kinds::data::ImageShape;

    use super::*;

    fn images(counts: &[(u64, u64)]) -> ImagesOverview {
        let class = |(number, (train, valid)): (usize, &(u64, u64))| ClassOverview {
            name: number.to_string(),
            train_images: *train,
            valid_images: *valid,
        };
        ImagesOverview {
            shape: ImageShape {
                channels: 1,
                height: 8,
                width: 8,
                classes: counts.len() as u64,
            },
            train_images: counts.iter().map(|count| count.0).sum(),
            valid_images: counts.iter().map(|count| count.1).sum(),
            classes: counts.iter().enumerate().map(class).collect(),
        }
    }

    #[test]
    fn a_folder_is_named_once_for_all_its_files() {
        let named = |files: &[&str]| {
            let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
            names_of(&files)
        };
        assert_eq!(named(&["/a/x.gz", "/a/y.gz"]), "/a (x.gz, y.gz)");
        assert_eq!(named(&["/sets/a/x.gz"]), "/sets/a/x.gz");
        assert_eq!(named(&["a/x.gz", "b/y.gz"]), "a/x.gz, b/y.gz");
        assert_eq!(named(&["x.jsonl", "t.json"]), "x.jsonl, t.json");
    }

    #[test]
    fn a_small_share_is_not_0() {
        assert_eq!(share_of(1, 3000), "1 of 3000 (< 0.1 %)");
        assert_eq!(share_of(0, 3000), "0 of 3000 (0.0 %)");
        assert_eq!(share(1, 3000), "< 0.1 %");
        assert_eq!(share(2, 3000), "0.1 %");
        assert_eq!(share(0, 3000), "0.0 %");
    }

    #[test]
    fn of_equally_large_classes_none_is_the_largest() {
        for (counts, expected) in [
            (
                &[(8, 2), (8, 2), (8, 2)][..],
                Some("all classes are equally large"),
            ),
            (
                &[(8, 1), (8, 3)],
                Some(
                    "largest class: 1, 50.0 % of training (like every class), 75.0 % of validation",
                ),
            ),
            (
                &[(3, 1), (1, 1)],
                Some(
                    "largest class: 0, 75.0 % of training, 50.0 % of validation (like every class)",
                ),
            ),
            (
                &[(3, 0), (1, 0)],
                Some("largest class: 0, 75.0 % of training, – of validation"),
            ),
            (&[(8, 2)], None),
        ] {
            let line = largest_class(&images(counts));
            assert_eq!(line.as_deref(), expected, "{counts:?}");
        }
    }
}
