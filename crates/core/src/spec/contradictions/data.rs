//! Contradictions with the data: what a model reads, and what the data can be used for.

use super::ResolvedPoint;
use crate::{
    kinds::{Content, Data, KeyFault, data::Tokenizer},
    spec::{checkpoint::AfterTraining, node::Node},
};

pub(super) fn of_data(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let mut faults = of_validation(point);
    faults.extend(of_labels(point));
    faults.extend(of_generation(point));
    faults.extend(of_synthetic(point.data));
    faults.extend(of_images(point));
    faults.extend(of_panel(point.data));
    faults.extend(of_tokenizer(point.data));
    faults.extend(of_pairs(point.data));
    faults.extend(of_windows(point));
    faults.extend(of_content(point));
    faults
}

/// Checks that what needs a validation loss gets one.
fn of_validation(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let Some(nothing) = point.data.without_validation() else {
        return Vec::new();
    };
    let train = point.train;
    let checkpoint = train.checkpoint.as_ref();
    let keeps_best = checkpoint.is_some_and(|checkpoint| checkpoint.after == AfterTraining::Best);
    let fault = |key: &'static str| {
        let folder = match point.data {
            Data::ImageFolder(_) => {
                " (a folder with `train` and `valid` needs no such key; leave it out)"
            }
            _ => "",
        };
        let message = format!("`{key}` needs a validation loss, but `{nothing}` is 0{folder}");
        KeyFault::between(key, &["data", key], message)
    };
    let keys = train.needing_validation();
    keys.chain(keeps_best.then_some("train.checkpoint.after"))
        .map(fault)
        .collect()
}

fn of_labels(point: &ResolvedPoint<'_>) -> Option<KeyFault> {
    let is_smoothed = point.train.label_smoothing > 0.0;
    (point.model.reads() == Content::Panel && is_smoothed).then(|| {
        let message = format!(
            "`label_smoothing` needs classes, and model kind `{}` has none; remove it",
            point.model.kind()
        );
        let key = "train.label_smoothing";
        KeyFault::between(key, &["model.kind", key], message)
    })
}

fn of_generation(point: &ResolvedPoint<'_>) -> Option<KeyFault> {
    let model = point.model.kind();
    let generates = point.train.evaluate.generate.is_some();
    (generates && model != "seq2seq").then(|| {
        let message = format!(
            "`generate` needs a sequence-to-sequence model, and model kind `{model}` is not one; \
             remove it"
        );
        let involved = ["model.kind", "train.evaluate"];
        KeyFault::between("train.evaluate.generate", &involved, message)
    })
}

fn of_synthetic(data: &Data) -> Option<KeyFault> {
    let sorts = data.pairs().is_some_and(|pairs| pairs.longest_first);
    let is_synthetic = data.loader().is_some_and(|loader| loader.synthetic);
    let message = "`data.longest_first` makes the first steps longer than the others, but with \
                   `data.synthetic` all steps use one batch; keep one of them";
    (sorts && is_synthetic).then(|| KeyFault::between("data.longest_first", &["data"], message))
}

/// Checks that windows that continue one another do not overlap or leave gaps.
fn of_windows(point: &ResolvedPoint<'_>) -> Option<KeyFault> {
    let contiguous = point.data.sampling().filter(|_| point.data.is_contiguous());
    let (stride, seq_len) = (contiguous?.stride?, point.model.seq_len()?);
    (stride != seq_len).then(|| {
        let message = format!(
            "`sampling: contiguous` continues where the previous window ended, but `stride` is \
             {stride} and `seq_len` {seq_len}; remove `stride`"
        );
        KeyFault::between("data.stride", &["data", "model"], message)
    })
}

/// Checks that the data holds what the model reads.
fn of_content(point: &ResolvedPoint<'_>) -> Option<KeyFault> {
    let (model, data) = (point.model.kind(), point.data.kind());
    let (reads, holds) = (point.model.reads(), point.data.content());
    if reads == holds {
        return None;
    }
    let example = match reads {
        Content::Nothing => "remove the `data` section".to_owned(),
        Content::Text => such_as("generated"),
        Content::Images => such_as("generated-images"),
        Content::Panel => such_as("stocknet"),
        Content::Pairs => such_as("chatlm"),
    };
    let held = if holds == Content::Nothing {
        "`none`".to_owned()
    } else {
        format!("`{data}`, {}", holds.name())
    };
    let message = format!(
        "model kind `{model}` reads {}, but `data.kind` is {held}; {example}",
        reads.name()
    );
    let involved = ["model.kind", "data.kind"];
    Some(KeyFault::between("data.kind", &involved, message))
}

fn of_images(point: &ResolvedPoint<'_>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    let size = match point.data {
        Data::FashionMnist(_) => 28,
        Data::Cifar10(_) => 32,
        Data::GeneratedImages(made) => made.image_size,
        _ => return faults,
    };
    let padding = point
        .data
        .augmentation()
        .map_or(0, |augmentation| augmentation.crop_padding);
    if padding >= size {
        let message = format!(
            "`data.crop_padding` {padding} allows crops without any pixel of the image, which is \
             {size} pixels wide; make it smaller"
        );
        faults.push(KeyFault::between("data.crop_padding", &["data"], message));
    }
    faults
}

/// Checks that the column of dates is not used as a column of numbers.
fn of_panel(data: &Data) -> Vec<KeyFault> {
    let Data::PanelCsv(panel) = data else {
        return Vec::new();
    };
    let listed = panel
        .columns
        .iter()
        .flatten()
        .any(|column| *column == panel.date);
    let say = |key: &str| {
        let message = format!(
            "`{key}` names `{}`, which `data.date` names as the column of dates; name columns of \
             numbers",
            panel.date
        );
        KeyFault::between(key, &["data"], message)
    };
    let named = [
        ("data.price", panel.price == panel.date),
        ("data.columns", listed),
    ];
    named
        .into_iter()
        .filter(|(_, names_dates)| *names_dates)
        .map(|(key, _)| say(key))
        .collect()
}

/// The message on a second tokenizer.
pub(crate) const TWO_TOKENIZERS: &str =
    "`data.tokenizer` and `data.tokenizer_file` are both given; keep one of them";

/// Checks that the values of the layers name one tokenizer: the one that is also the default would be
/// ignored.
pub(super) fn of_given_tokenizer(tree: &Node) -> Option<KeyFault> {
    let keys = ["data.tokenizer", "data.tokenizer_file"];
    let [unit, file] = ["tokenizer", "tokenizer_file"].map(|key| tree.get_path(&["data", key]));
    let are_both = unit.is_some() && file.is_some();
    are_both.then(|| KeyFault::between(keys[0], &keys, TWO_TOKENIZERS))
}

/// Checks that a text has one tokenizer.
fn of_tokenizer(data: &Data) -> Option<KeyFault> {
    let is_other = data.tokenizer() != Some(Tokenizer::Character);
    (data.tokenizer_file().is_some() && is_other)
        .then(|| KeyFault::between("data.tokenizer", &["data"], TWO_TOKENIZERS))
}

/// Checks that validation rows have one source, and that the two texts of a row have different
/// keys.
fn of_pairs(data: &Data) -> Vec<KeyFault> {
    let Data::SftJsonl(own) = data else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    if own.valid_path.is_some() && own.valid_fraction.is_some() {
        let message = "`data.valid_path` and `data.valid_fraction` are both given; keep one of \
                       them";
        faults.push(KeyFault::between("data.valid_fraction", &["data"], message));
    }
    if own.prompt_key == own.response_key {
        let message = format!(
            "`data.prompt_key` and `data.response_key` are both `{}`; name the prompt and the \
             response",
            own.prompt_key
        );
        faults.push(KeyFault::between("data.response_key", &["data"], message));
    }
    if own.end_token == own.unknown_token {
        let message = format!(
            "`data.end_token` and `data.unknown_token` are both `{}`, so every row would end with \
             the unknown token",
            own.end_token
        );
        faults.push(KeyFault::between("data.unknown_token", &["data"], message));
    }
    faults
}

fn such_as(kind: &str) -> String {
    format!("name one that fits, such as `data: {{kind: {kind}}}`")
}
