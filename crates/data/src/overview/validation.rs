//! How the validation part is made, in words.

use std::path::Path;

use kiln_core::{
    kinds::data::{Data, Tokenizer},
    units::Fraction,
};

use crate::{error::DataError, images::valid_folder, split::SHAKESPEARE_VALID};

/// `the last 10.0 % of the characters (data.valid_fraction)`.
///
/// # Errors
/// The folder of the images cannot be searched for a folder for validation.
pub(super) fn in_words(data: &Data) -> Result<String, DataError> {
    if let Data::ImageFolder(folder) = data
        && let Some(own) = valid_folder(Path::new(&folder.path))?
    {
        return Ok(format!("the folder {}", own.display()));
    }
    Ok(by_settings(data))
}

/// The same of data without a folder for validation.
fn by_settings(data: &Data) -> String {
    if let Some(key) = data.without_validation() {
        return format!("none (`{key}` is 0)");
    }
    match (data, data.valid_fraction()) {
        (Data::SftJsonl(own), None) => {
            let path = own.valid_path.as_deref().unwrap_or_default();
            format!("the file {path}")
        }
        (Data::GeneratedImages(_), _) => "generated (`data.valid_images`)".to_owned(),
        (Data::Tinyshakespeare(_), _) => {
            let part = last(SHAKESPEARE_VALID, "characters");
            format!("{part}{}", at_line(data))
        }
        (_, None) => "files of its own, as published".to_owned(),
        (Data::ImageFolder(_), Some(share)) => format!(
            "{} of each class (`data.valid_fraction`), chosen by a hash of the file names",
            Fraction(share)
        ),
        (_, Some(share)) => {
            let items = match data {
                Data::SftJsonl(_) => "rows",
                Data::PanelCsv(_) | Data::Stocknet(_) => "dates",
                _ => "characters",
            };
            let key = "(`data.valid_fraction`)";
            format!("{} {key}{}", last(share, items), at_line(data))
        }
    }
}

fn last(share: f64, items: &str) -> String {
    format!("the last {} of the {items}", Fraction(share))
}

fn at_line(data: &Data) -> &'static str {
    match data.tokenizer() {
        Some(Tokenizer::Word) => ", from the start of a line",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_says_where_its_validation_part_comes_from() {
        for (keys, expected) in [
            (
                "kind: text, path: x, tokenizer: word, valid_fraction: 0.25",
                "the last 25.0 % of the characters (`data.valid_fraction`), from the start of a line",
            ),
            (
                "kind: text, path: x, valid_fraction: 0",
                "none (`data.valid_fraction` is 0)",
            ),
            ("kind: tinyshakespeare", "the last 10.0 % of the characters"),
            ("kind: wikitext2", "files of its own, as published"),
            ("kind: generated-images", "generated (`data.valid_images`)"),
            (
                "kind: image-folder, path: /nowhere",
                "10.0 % of each class (`data.valid_fraction`), chosen by a hash of the file names",
            ),
            (
                "kind: stocknet",
                "the last 10.0 % of the dates (`data.valid_fraction`)",
            ),
            (
                "kind: sft-jsonl, path: x, tokenizer: t",
                "the last 10.0 % of the rows (`data.valid_fraction`)",
            ),
            (
                "kind: sft-jsonl, path: x, valid_path: y, tokenizer: t",
                "the file y",
            ),
        ] {
            let data: Data = serde_yaml::from_str(&format!("{{{keys}}}")).unwrap();
            assert_eq!(in_words(&data).unwrap(), expected, "{keys}");
        }
    }
}
