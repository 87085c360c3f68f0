//! The parts of the data that are left out: in words, and how many there are.

use std::collections::BTreeMap;

use kiln_core::kinds::data::{Counts, DataFacts, PairSampling};

use super::{images::LoadedImages, panel::LoadedPanel};

/// Skipped files.
pub fn of_images(images: &LoadedImages) -> BTreeMap<String, u64> {
    counted([(
        ["file that is no image", "files that are no images"],
        images.skipped_files,
    )])
}

/// Skipped rows by reason, with the file that has most of them.
pub fn of_panel(panel: &LoadedPanel) -> BTreeMap<String, u64> {
    let null = (["row with a `null`", "rows with a `null`"], panel.null_rows);
    let mut left_out = counted([null]);
    for skipped in &panel.skipped {
        let [one, several] = skipped.reason.words();
        let words = if skipped.rows == 1 { one } else { several };
        let place = if skipped.rows_of_file == skipped.rows {
            format!("in {}", skipped.file)
        } else {
            format!("{} of them in {}", skipped.rows_of_file, skipped.file)
        };
        left_out.insert(format!("{words} ({place})"), skipped.rows);
    }
    left_out
}

/// Rows of either part that lost their end.
pub fn of_pairs(facts: &DataFacts, sampling: &PairSampling) -> BTreeMap<String, u64> {
    let Counts::Pairs { train, valid, .. } = &facts.counts else {
        return BTreeMap::new();
    };
    let (prompt, response) = (sampling.max_prompt_tokens, sampling.max_response_tokens);
    counted([
        (
            ["end of a prompt", "ends of prompts"]
                .map(|what| format!("{what} longer than `max_prompt_tokens` {prompt}")),
            train.cut_prompts + valid.cut_prompts,
        ),
        (
            ["end of a response", "ends of responses"]
                .map(|what| format!("{what} longer than `max_response_tokens` {response}")),
            train.cut_responses + valid.cut_responses,
        ),
    ])
}

/// The parts that were left out, each named in words for one and for several.
pub(super) fn counted<T: Into<String>, const N: usize>(
    counts: [([T; 2], u64); N],
) -> BTreeMap<String, u64> {
    counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|([one, several], count)| (if count == 1 { one } else { several }.into(), count))
        .collect()
}
