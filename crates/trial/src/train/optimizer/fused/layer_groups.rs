//! Groups of a network's parameters by their names, one for each of its layers.

use std::sync::Arc;

use crate::{
    model::{Network, without_kind},
    train::gradient::LayerGroup,
};

/// The layer groups of a network.
#[derive(Debug)]
pub(super) struct LayerGroups {
    /// In the order of their first parameters.
    pub(super) groups: Arc<[LayerGroup]>,
    /// The group of each parameter.
    group_of: Vec<usize>,
}

impl LayerGroups {
    /// In: the path of each parameter with its number of values.
    pub(super) fn of<'a>(
        network: &Network,
        parameters: impl Iterator<Item = (&'a str, u64)>,
    ) -> Self {
        // A user's own model has no kind before its paths.
        let is_own = matches!(network, Network::Own(_));
        let named = parameters.map(|(path, size)| match is_own {
            true => (path, size),
            false => (without_kind(path), size),
        });
        Self::named(named)
    }

    fn named<'a>(parameters: impl Iterator<Item = (&'a str, u64)>) -> Self {
        let (mut groups, mut group_of) = (Vec::<LayerGroup>::new(), Vec::new());
        for (path, size) in parameters {
            let name = group_name(path);
            let known = groups.iter().position(|group| group.name == name);
            let at = known.unwrap_or_else(|| {
                groups.push(LayerGroup {
                    name,
                    parameters: 0,
                });
                groups.len() - 1
            });
            groups[at].parameters += size;
            group_of.push(at);
        }
        Self {
            groups: groups.into(),
            group_of,
        }
    }

    /// The sum over each group's parameters.
    pub(super) fn sums(&self, of_each: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.groups.len()];
        for (group, value) in self.group_of.iter().zip(of_each) {
            sums[*group] += value;
        }
        sums
    }
}

/// A path up to its first numbers; its first word if it has none.
fn group_name(path: &str) -> String {
    let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    let words: Vec<&str> = path.split('.').collect();
    let end = match words.iter().position(is_number) {
        Some(first) => {
            let numbers = words[first..].iter().take_while(|word| is_number(word));
            first + numbers.count()
        }
        None => 1,
    };
    words[..end].join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_one_block_are_one_group_wherever_they_stand() {
        let parameters = [
            ("token_table", 60),
            ("blocks.0.attention_norm.gain", 4),
            ("blocks.10.attention_norm.gain", 4),
            ("blocks.0.mlp.widening.bias", 8),
            ("stages.0.1.convolutions.0.weight", 9),
            ("encoder.blocks.2.attention.keys", 16),
            ("encoder.positions.table", 3),
            ("layers.0", 2),
        ];
        let found = LayerGroups::named(parameters.into_iter());
        let groups: Vec<(&str, u64)> = found
            .groups
            .iter()
            .map(|group| (group.name.as_str(), group.parameters))
            .collect();
        assert_eq!(
            groups,
            [
                ("token_table", 60),
                ("blocks.0", 12),
                ("blocks.10", 4),
                ("stages.0.1", 9),
                ("encoder.blocks.2", 16),
                ("encoder", 3),
                ("layers.0", 2)
            ]
        );
        assert_eq!(
            found.sums(&[1.0, 2.0, 3.0, f64::INFINITY, 5.0, 6.0, 7.0, 8.0]),
            [1.0, f64::INFINITY, 3.0, 5.0, 6.0, 7.0, 8.0],
            "what overflows in one group leaves the others as they are"
        );
    }
}
