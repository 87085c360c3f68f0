//! Models of the next token: their sizes depend on the vocabulary, which is their own or the data's.

use super::{Content, InputShape, KeyFault, model::ModelKind};

/// The facts that the settings of such a model define; [`ModelKind`] follows from them.
pub(super) trait TextModel {
    /// See [`ModelKind::kind`].
    const KIND: &'static str;
    /// See [`ModelKind::flops_formula`].
    const FLOPS_FORMULA: &'static str;
    /// See [`ModelKind::keys_of_sizes`].
    const KEYS_OF_SIZES: &'static [&'static str] = &[];

    /// Tokens per sample.
    fn seq_len(&self) -> u64;

    /// Rows of its token table, if the settings tell them; else as many as the data has tokens.
    fn own_vocabulary(&self) -> Option<u64>;

    /// See [`ModelKind::parameters`].
    fn parameters_with(&self, vocabulary: u64) -> u64;

    /// See [`ModelKind::flops_per_sample`].
    fn flops_with(&self, vocabulary: u64) -> Option<u64>;

    /// See [`ModelKind::contradictions`].
    fn contradiction(&self) -> Option<KeyFault>;
}

impl<T: TextModel> ModelKind for T {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn reads(&self) -> Content {
        Content::Text
    }

    fn seq_len(&self) -> Option<u64> {
        Some(TextModel::seq_len(self))
    }

    fn vocabulary(&self, input: Option<InputShape>) -> Option<u64> {
        self.own_vocabulary().or_else(|| input?.vocabulary())
    }

    fn parameters(&self, input: Option<InputShape>) -> Option<u64> {
        Some(self.parameters_with(self.vocabulary(input)?))
    }

    fn flops_per_sample(&self, input: Option<InputShape>) -> Option<u64> {
        self.flops_with(self.vocabulary(input)?)
    }

    fn flops_formula(&self) -> &'static str {
        T::FLOPS_FORMULA
    }

    fn keys_of_sizes(&self) -> &'static [&'static str] {
        T::KEYS_OF_SIZES
    }

    fn contradictions(&self) -> Vec<KeyFault> {
        self.contradiction().into_iter().collect()
    }
}
