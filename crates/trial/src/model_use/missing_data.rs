//! The error of data of the training that are missing where a model is used.

use kiln_data::error::{DataError, PanelError};

use crate::TrialError;

/// Why the use of a model needs something of the training, and the pronoun for it.
type Need = [&'static str; 2];
pub(super) const NUMBERS_TOKENS: Need = ["the training's data number the tokens", "them"];
pub(super) const TOKENIZES: Need = ["the training's tokenizer numbers the tokens", "it"];
pub(super) const NORMALIZES: Need = ["the training's data normalize the columns", "them"];
pub(super) const VALIDATES: Need = ["the training's data contain the validation data", "them"];

/// The error of data, which says so if they are those of the training and are missing here.
pub(super) fn of_training([need, them]: Need, error: &DataError) -> TrialError {
    match (error.missing_path(), error) {
        (Some(path), _) => TrialError::NoDevice(format!(
            "{}: there is no such file or folder; {need}: put {them} back at that path, or link \
             {them} there",
            path.display()
        )),
        (None, DataError::NotFound { .. } | DataError::Panel(PanelError::NotFound { .. })) => {
            TrialError::NoDevice(format!("{need}, and {error}"))
        }
        (None, _) => TrialError::Bad(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_published_set_keeps_its_remedy() {
        let missing = DataError::NotFound {
            kind: "wikitext2",
            looked: vec!["data/wikitext2".into()],
            fetch: Some("wikitext2"),
        };
        let missing = of_training(NUMBERS_TOKENS, &missing);
        let text = missing.to_string();
        assert!(
            text.starts_with("the training's data number the tokens, and the data of ")
                && text.contains("`kiln data fetch wikitext2`"),
            "{text}"
        );
        assert!(matches!(missing, TrialError::NoDevice(_)), "{text}");
        let damaged = of_training(NUMBERS_TOKENS, &DataError::NoText);
        assert!(matches!(damaged, TrialError::Bad(_)), "{damaged}");
    }
}
