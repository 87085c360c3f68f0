//! Keys and values of the tokens that one block of a decoder has seen. In: those of the latest
//! tokens. Out: those of all, in memory with room for more, so that a token copies no earlier one.

use burn::tensor::{Int, Tensor};

/// Keys and values of one block, side by side, with room for further tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct KeysValues {
    memory: Option<Tensor<3>>, // [rows, room, 2 × width]
    seen: usize,
}

/// Least number of tokens that there is room for.
const LEAST_ROOM: usize = 64;

impl KeysValues {
    /// Adds those of further tokens, `latest` [rows, time, 2 × width]; out those of all [rows, seen,
    /// 2 × width], to be dropped before the next are added: the memory is then written in place.
    pub(super) fn add(&mut self, latest: Tensor<3>) -> Tensor<3> {
        let [rows, time, both] = latest.dims();
        let seen = self.seen + time;
        let memory = match self.memory.take() {
            Some(memory) if memory.dims()[1] >= seen => memory,
            before => {
                // The room doubles, so that what is there is rarely copied.
                let room = (2 * seen).max(LEAST_ROOM);
                let empty = Tensor::zeros([rows, room, both], (&latest.device(), latest.dtype()));
                match before {
                    None => empty,
                    Some(before) => {
                        let old = [0..rows, 0..self.seen, 0..both];
                        empty.slice_assign(old.clone(), before.slice(old))
                    }
                }
            }
        };
        let memory = memory.slice_assign([0..rows, self.seen..seen, 0..both], latest);
        self.seen = seen;
        self.memory = Some(memory.clone());
        memory.narrow(1, 0, seen)
    }

    /// Tokens of each row.
    pub(super) fn seen(&self) -> usize {
        self.seen
    }

    /// Those whose row `r` is this one's row `rows[r]`.
    pub(super) fn select(self, rows: &Tensor<1, Int>) -> Self {
        Self {
            memory: self.memory.map(|memory| memory.select(0, rows.clone())),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Values [2, time, 4] that are all different.
    fn latest(first: usize, time: usize) -> Tensor<3> {
        let value =
            |row: usize, at: usize, axis: usize| (1000 * row + 4 * (first + at) + axis) as f32;
        let values: Vec<f32> = (0..2)
            .flat_map(|row| {
                (0..time).flat_map(move |at| (0..4).map(move |axis| value(row, at, axis)))
            })
            .collect();
        Tensor::<1>::from_data(values.as_slice(), &Device::flex()).reshape([2, time, 4])
    }

    fn values(tensor: Tensor<3>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn tokens_stay_in_their_order_while_the_room_grows() {
        let mut kept = KeysValues::default();
        let prompt = LEAST_ROOM - 2;
        assert_eq!(
            values(kept.add(latest(0, prompt))),
            values(latest(0, prompt))
        );
        for seen in prompt..5 * LEAST_ROOM {
            assert_eq!(kept.seen(), seen);
            let all = kept.add(latest(seen, 1));
            assert_eq!(all.dims(), [2, seen + 1, 4]);
            if seen % 37 == 0 || seen + 1 == 5 * LEAST_ROOM {
                assert_eq!(values(all), values(latest(0, seen + 1)));
            }
        }
    }

    #[test]
    fn rows_are_chosen_with_all_their_tokens_and_a_copy_stays_as_it_was() {
        let mut kept = KeysValues::default();
        drop(kept.add(latest(0, 3)));
        let rows = Tensor::from_data([1, 1], &Device::flex());
        let mut chosen = kept.clone().select(&rows);
        let all = values(chosen.add(latest(3, 1)));
        let (whole, second) = (values(latest(0, 4)), 16);
        assert_eq!(all[..12], whole[second..second + 12]);
        assert_eq!(all[second..second + 12], whole[second..second + 12]);
        assert_eq!(values(kept.add(latest(3, 1))), whole);
    }
}
