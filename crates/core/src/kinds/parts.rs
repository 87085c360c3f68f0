//! Parts of a model that `train.initial_weights.without` may name, with the paths of their parameters
//! within the model.

use super::Model;

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The name in `without`.
    pub name: &'static str,
    /// Paths of its parameters. A model has no parameter at some of them: a tied head is not one.
    pub parameters: &'static [&'static str],
}

impl ModelPart {
    const fn new(name: &'static str, parameters: &'static [&'static str]) -> Self {
        Self { name, parameters }
    }
}

/// The last layer.
const HEAD: &[ModelPart] = &[ModelPart::new("head", &["head.weight", "head.bias"])];
const PANEL: &[ModelPart] = &[
    ModelPart::new("embedding", &["symbol_table"]),
    ModelPart::new("head", &["head.weight", "head.bias"]),
];
/// The parameters with a row per token.
const TOKENS: &[ModelPart] = &[ModelPart::new(
    "embedding",
    &["token_table", "head", "head_bias"],
)];
const TOKENS_OF_MLP: &[ModelPart] = &[ModelPart::new(
    "embedding",
    &["token_table", "output.weight", "output.bias"],
)];

impl Model {
    /// The parts that begin with random values if `train.initial_weights.without` names them. Those of
    /// a user's own model are not known here.
    pub fn parts(&self) -> &'static [ModelPart] {
        match self {
            Self::Gpt(_) | Self::Lstm(_) | Self::Seq2seq(_) => TOKENS,
            Self::Mlp(_) => TOKENS_OF_MLP,
            Self::PanelLstm(_) => PANEL,
            Self::Resnet(_) => HEAD,
            Self::Matmul(_) | Self::Command(_) | Self::Custom(_) => &[],
        }
    }

    /// The part with the parameter at this path. In a user's own model each field is a part.
    pub fn part_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        if matches!(self, Self::Custom(_)) {
            return path.split('.').next();
        }
        let part = self
            .parts()
            .iter()
            .find(|part| part.parameters.contains(&path))?;
        Some(part.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_belongs_to_a_part_by_its_path() {
        let part = |model: &str, path: &'static str| {
            let model: Model = serde_yaml::from_str(model).unwrap();
            model.part_of(path)
        };
        let own = "{kind: custom, name: mine, reads: images}";
        for (model, path, expected) in [
            ("{kind: resnet}", "head.bias", Some("head")),
            ("{kind: resnet}", "stem.weight", None),
            ("{kind: gpt}", "head", Some("embedding")),
            ("{kind: gpt}", "position_table", None),
            ("{kind: mlp}", "output.weight", Some("embedding")),
            ("{kind: panel-lstm}", "symbol_table", Some("embedding")),
            (own, "stem.kernel.weight", Some("stem")),
        ] {
            assert_eq!(part(model, path), expected, "{model} {path}");
        }
    }
}
