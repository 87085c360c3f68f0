//! Groups of a network's parameters by their names: about its layers.

#[cfg(feature = "libtorch")]
use crate::model::without_kind;

/// Parameters whose names begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// That beginning, such as `blocks.3` or `token_table`.
    pub name: String,
    /// Number of their values.
    pub parameters: u64,
}

/// The groups in the order of their first parameters, and the group of each parameter. In: the path of
/// each with its number of values.
#[cfg(feature = "libtorch")]
pub(super) fn layer_groups<'a>(
    parameters: impl Iterator<Item = (&'a str, u64)>,
) -> (Vec<LayerGroup>, Vec<usize>) {
    let mut groups: Vec<LayerGroup> = Vec::new();
    let mut place = |(path, size): (&str, u64)| {
        let name = group_name(without_kind(path));
        let known = groups.iter().position(|group| group.name == name);
        let at = known.unwrap_or_else(|| {
            groups.push(LayerGroup {
                name,
                parameters: 0,
            });
            groups.len() - 1
        });
        groups[at].parameters += size;
        at
    };
    let of_each = parameters.map(&mut place).collect();
    (groups, of_each)
}

/// A path up to its first numbers; its first word if it has none.
#[cfg(feature = "libtorch")]
fn group_name(path: &str) -> String {
    let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let words: Vec<&str> = path.split('.').collect();
    let end = match words.iter().position(is_number) {
        Some(first) => {
            words[first..]
                .iter()
                .take_while(|word| is_number(word))
                .count()
                + first
        }
        None => 1,
    };
    words[..end].join(".")
}

#[cfg(all(test, feature = "libtorch"))]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_one_block_are_one_group_wherever_they_stand() {
        let parameters = [
            ("Gpt.token_table", 60),
            ("Gpt.blocks.0.norm.gain", 4),
            ("Gpt.blocks.10.norm.gain", 4),
            ("Gpt.blocks.0.mlp.bias", 8),
            ("ResNet.stages.0.1.convolutions.0.weight", 9),
            ("Seq2Seq.encoder.blocks.2.attention.keys", 16),
            ("Seq2Seq.encoder.positions.table", 3),
            ("Own.weight", 2),
        ];
        let (groups, of_each) = layer_groups(parameters.into_iter());
        let found: Vec<(&str, u64)> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.parameters))
            .collect();
        assert_eq!(
            found,
            [
                ("token_table", 60),
                ("blocks.0", 12),
                ("blocks.10", 4),
                ("stages.0.1", 9),
                ("encoder.blocks.2", 16),
                ("encoder", 3),
                ("weight", 2)
            ]
        );
        assert_eq!(of_each, [0, 1, 2, 1, 3, 4, 5, 6]);
    }
}
