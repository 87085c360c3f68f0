//! Generation of a sequence-to-sequence model's responses: greedy or by beam search. Input: prompts
//! and a model that predicts one token at a time. Output: token ids without the end token. The data
//! defines the special tokens.

use crate::TrialError;

/// The operations that a search needs from a model. Rows are prompts, or beams of prompts, in an
/// order that the search keeps.
pub(crate) trait Responder {
    /// Begins the responses to these prompts, one row for each.
    fn begin(&mut self, prompts: &[&[u32]]) -> Result<(), TrialError>;

    /// From now on row `r` is what row `rows[r]` was.
    fn select(&mut self, rows: &[usize]) -> Result<(), TrialError>;

    /// Adds a token to each row. Waits. The likeliest next one of each.
    fn likeliest(&mut self, tokens: &[u32]) -> Result<Vec<u32>, TrialError>;

    /// Adds a token to each row. Waits. Of each row the `most` likeliest next tokens, or as many as
    /// there are, the likeliest first.
    fn continuations(
        &mut self,
        tokens: &[u32],
        most: usize,
    ) -> Result<Vec<Vec<Continuation>>, TrialError>;
}

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Continuation {
    pub(crate) token: u32,
    /// The logarithm of its probability.
    pub(crate) log_probability: f32,
}

/// Settings of generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writing {
    /// Tokens of a response, at most; the end token counts.
    pub(crate) most: usize,
    /// 1 always takes the likeliest token.
    pub(crate) beams: usize,
    /// Comes before a response's first token.
    pub(crate) start: u32,
    /// Ends a response.
    pub(crate) end: u32,
    /// Tokens that the data knows.
    pub(crate) vocabulary: usize,
}

impl Writing {
    /// A response to each prompt. `on_progress` hears how many tokens are written, and may stop it.
    pub(crate) fn respond(
        &self,
        model: &mut impl Responder,
        prompts: &[&[u32]],
        on_progress: &mut impl FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        if prompts.is_empty() || self.most == 0 {
            return Ok(vec![Vec::new(); prompts.len()]);
        }
        model.begin(prompts)?;
        if self.beams > 1 {
            self.search(model, prompts.len(), on_progress)
        } else {
            self.greedy(model, prompts.len(), on_progress)
        }
    }

    fn greedy(
        &self,
        model: &mut impl Responder,
        prompts: usize,
        on_progress: &mut impl FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        let mut responses = vec![Vec::new(); prompts];
        let mut open: Vec<usize> = (0..prompts).collect();
        let mut latest = vec![self.start; prompts];
        for written in 1..=self.most {
            let next = model.likeliest(&latest)?;
            let going: Vec<usize> = (0..open.len())
                .filter(|row| next[*row] != self.end)
                .collect();
            for row in &going {
                responses[open[*row]].push(next[*row]);
            }
            on_progress(written)?;
            if going.is_empty() || written == self.most {
                break;
            }
            if going.len() < open.len() {
                model.select(&going)?;
            }
            latest = going.iter().map(|row| next[*row]).collect();
            open = going.iter().map(|row| open[*row]).collect();
        }
        Ok(responses)
    }

    /// Returns for each prompt the beam with the highest mean log-probability per token, end token
    /// included.
    fn search(
        &self,
        model: &mut impl Responder,
        prompts: usize,
        on_progress: &mut impl FnMut(usize) -> Result<(), TrialError>,
    ) -> Result<Vec<Vec<u32>>, TrialError> {
        let mut searches: Vec<BeamSearch> = (0..prompts).map(|_| BeamSearch::default()).collect();
        // The first token comes after one beam, whose continuations become all beams.
        let mut open: Vec<usize> = (0..prompts).collect();
        let mut latest = vec![self.start; prompts];
        for written in 1..=self.most {
            let all = model.continuations(&latest, self.candidates())?;
            let (mut rows, mut still_open, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
            let mut first_row = 0;
            for prompt in open {
                let search = &mut searches[prompt];
                let count = search.running.len();
                let going = search.go_on(self, &all[first_row..first_row + count], written);
                if !going.is_empty() {
                    still_open.push(prompt);
                    rows.extend(going.iter().map(|(beam, _)| first_row + beam));
                    tokens.extend(going.iter().map(|(_, token)| *token));
                }
                first_row += count;
            }
            on_progress(written)?;
            if rows.is_empty() {
                break;
            }
            model.select(&rows)?;
            (open, latest) = (still_open, tokens);
        }
        Ok(searches
            .into_iter()
            .map(|search| search.best(self.end))
            .collect())
    }
}

impl Writing {
    /// Continuations that are looked at: enough beams are left even if all the best ones end.
    fn candidates(&self) -> usize {
        2 * self.beams
    }
}

/// One beam: its tokens and the sum of their log-probabilities, or for a finished one the mean.
#[derive(Clone, Debug, Default, PartialEq)]
struct Beam {
    tokens: Vec<u32>,
    score: f32,
}

/// The search for one prompt's response.
#[derive(Debug)]
struct BeamSearch {
    /// The likeliest first.
    running: Vec<Beam>,
    /// The best first, at most as many as there are beams.
    finished: Vec<Beam>,
}

impl Default for BeamSearch {
    fn default() -> Self {
        Self {
            running: vec![Beam::default()],
            finished: Vec::new(),
        }
    }
}

impl BeamSearch {
    /// Takes in what may follow each running beam. Out: which beam each one that runs on comes
    /// from, and its new token; none once no better response is to be expected.
    ///
    /// As many candidates are looked at as leave enough beams even if all the best ones end here;
    /// one that ends counts only among the best.
    fn go_on(
        &mut self,
        writing: &Writing,
        continuations: &[Vec<Continuation>],
        written: usize,
    ) -> Vec<(usize, u32)> {
        let is_last = written == writing.most;
        let candidates = self.candidates(continuations, writing.candidates());
        let (mut running, mut going) = (Vec::new(), Vec::new());
        for (rank, (beam, token, score)) in candidates.into_iter().enumerate() {
            let tokens = || {
                self.running[beam]
                    .tokens
                    .iter()
                    .copied()
                    .chain([token])
                    .collect()
            };
            if token == writing.end || is_last {
                if rank < writing.beams {
                    self.finished.push(Beam {
                        tokens: tokens(),
                        score: score / written as f32,
                    });
                }
            } else if running.len() < writing.beams {
                running.push(Beam {
                    tokens: tokens(),
                    score,
                });
                going.push((beam, token));
            }
        }
        self.finished
            .sort_by(|one, other| other.score.total_cmp(&one.score));
        self.finished.truncate(writing.beams);
        self.running = running;
        if self.is_over(writing, written) {
            Vec::new()
        } else {
            going
        }
    }

    /// The likeliest continuations over all beams, the likeliest first: beam, token, sum of
    /// log-probabilities.
    fn candidates(
        &self,
        continuations: &[Vec<Continuation>],
        count: usize,
    ) -> Vec<(usize, u32, f32)> {
        let of_beam = |(beam, (running, following)): (usize, (&Beam, &Vec<Continuation>))| {
            let scored = following
                .iter()
                .map(|next| (beam, next.token, next.log_probability + running.score));
            scored
                .filter(|(_, _, score)| !score.is_nan())
                .collect::<Vec<_>>()
        };
        let mut all: Vec<(usize, u32, f32)> = self
            .running
            .iter()
            .zip(continuations)
            .enumerate()
            .flat_map(of_beam)
            .collect();
        all.sort_by(|one, other| {
            other
                .2
                .total_cmp(&one.2)
                .then(one.0.cmp(&other.0))
                .then(one.1.cmp(&other.1))
        });
        all.truncate(count);
        all
    }

    /// Whether enough are finished, and none that still runs would be better if it ended now.
    fn is_over(&self, writing: &Writing, written: usize) -> bool {
        let Some(best) = self.running.first() else {
            return true;
        };
        let worst = self
            .finished
            .last()
            .filter(|_| self.finished.len() == writing.beams);
        worst.is_some_and(|worst| best.score / written as f32 <= worst.score)
    }

    /// The best one that is finished, without its end token.
    fn best(self, end: u32) -> Vec<u32> {
        let best = self
            .finished
            .into_iter()
            .next()
            .or_else(|| self.running.into_iter().next())
            .unwrap_or_default();
        let mut tokens = best.tokens;
        if tokens.last() == Some(&end) {
            tokens.pop();
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 0;
    const START: u32 = 9;

    /// A model whose next token depends on the tokens so far alone, by a table of shares of tokens
    /// 0 to 3.
    struct Table {
        of: fn(&[u32]) -> [f32; 4],
        rows: Vec<Vec<u32>>,
        asked: usize,
    }

    impl Table {
        fn new(of: fn(&[u32]) -> [f32; 4]) -> Self {
            Self {
                of,
                rows: Vec::new(),
                asked: 0,
            }
        }

        fn add(&mut self, tokens: &[u32]) -> Vec<[f32; 4]> {
            assert_eq!(tokens.len(), self.rows.len());
            self.asked += tokens.len();
            self.rows
                .iter_mut()
                .zip(tokens)
                .for_each(|(row, token)| row.push(*token));
            self.rows.iter().map(|row| (self.of)(&row[1..])).collect()
        }
    }

    impl Responder for Table {
        fn begin(&mut self, prompts: &[&[u32]]) -> Result<(), TrialError> {
            self.rows = vec![Vec::new(); prompts.len()];
            Ok(())
        }

        fn select(&mut self, rows: &[usize]) -> Result<(), TrialError> {
            self.rows = rows.iter().map(|row| self.rows[*row].clone()).collect();
            Ok(())
        }

        fn likeliest(&mut self, tokens: &[u32]) -> Result<Vec<u32>, TrialError> {
            let highest = |shares: [f32; 4]| {
                (0..4)
                    .max_by(|one, other| shares[*one].total_cmp(&shares[*other]))
                    .unwrap() as u32
            };
            Ok(self.add(tokens).into_iter().map(highest).collect())
        }

        fn continuations(
            &mut self,
            tokens: &[u32],
            most: usize,
        ) -> Result<Vec<Vec<Continuation>>, TrialError> {
            let ranked = |shares: [f32; 4]| {
                let mut all: Vec<Continuation> = (0..)
                    .zip(shares)
                    .map(|(token, share)| Continuation {
                        token,
                        log_probability: share.ln(),
                    })
                    .collect();
                all.sort_by(|one, other| other.log_probability.total_cmp(&one.log_probability));
                all.truncate(most);
                all
            };
            Ok(self.add(tokens).into_iter().map(ranked).collect())
        }
    }

    fn respond(of: fn(&[u32]) -> [f32; 4], beams: usize, most: usize) -> Vec<Vec<u32>> {
        let writing = Writing {
            most,
            beams,
            start: START,
            end: END,
            vocabulary: 4,
        };
        writing
            .respond(&mut Table::new(of), &[&[1], &[2]], &mut |_| Ok(()))
            .unwrap()
    }

    /// The likeliest first token leads nowhere good: 1 then three tokens alike, but 2 is followed
    /// by 3 for sure.
    fn trap(so_far: &[u32]) -> [f32; 4] {
        match so_far {
            [] => [0.0, 0.6, 0.4, 0.0],
            [1] => [0.1, 0.3, 0.3, 0.3],
            [2] => [0.0, 0.0, 0.0, 1.0],
            _ => [1.0, 0.0, 0.0, 0.0],
        }
    }

    #[test]
    fn greed_falls_into_the_trap_and_a_search_does_not() {
        assert_eq!(respond(trap, 1, 8)[0][0], 1);
        assert_eq!(respond(trap, 2, 8), [vec![2, 3], vec![2, 3]]);
        assert_eq!(respond(trap, 3, 8), [vec![2, 3], vec![2, 3]]);
    }

    #[test]
    fn a_search_wide_enough_finds_the_best_of_all_responses() {
        fn wavering(so_far: &[u32]) -> [f32; 4] {
            let sum: u32 = so_far
                .iter()
                .zip(1..)
                .map(|(token, place)| token * place * 7)
                .sum();
            let weights = [1, 2, 3, 4]
                .map(|at: u32| ((sum * 13 + at * 29 + so_far.len() as u32 * 5) % 17 + 1) as f32);
            weights.map(|weight| weight / weights.iter().sum::<f32>())
        }
        // All responses of at most 4 tokens, by their mean log-probability.
        let mut open = vec![(Vec::new(), 0.0_f32)];
        let mut best = (Vec::new(), f32::NEG_INFINITY);
        for written in 1..=4 {
            let mut longer = Vec::new();
            for (tokens, score) in open {
                for (token, share) in (0..).zip(wavering(&tokens)) {
                    let (extended, score) =
                        ([tokens.clone(), vec![token]].concat(), score + share.ln());
                    if (token == END || written == 4) && score / written as f32 > best.1 {
                        best = (extended, score / written as f32);
                    } else if token != END {
                        longer.push((extended, score));
                    }
                }
            }
            open = longer;
        }
        best.0.retain(|token| *token != END);
        assert_eq!(respond(wavering, 256, 4), [best.0.clone(), best.0]);
    }

    #[test]
    fn finished_rows_cost_nothing_more_and_no_response_is_too_long() {
        fn endless(_: &[u32]) -> [f32; 4] {
            [0.1, 0.2, 0.6, 0.1]
        }
        assert_eq!(respond(endless, 1, 5), [vec![2; 5], vec![2; 5]]);
        assert_eq!(respond(endless, 2, 5), [vec![2; 5], vec![2; 5]]);
        fn at_once(_: &[u32]) -> [f32; 4] {
            [0.9, 0.1, 0.0, 0.0]
        }
        let writing = Writing {
            most: 50,
            beams: 1,
            start: START,
            end: END,
            vocabulary: 4,
        };
        let mut table = Table::new(at_once);
        assert_eq!(
            writing
                .respond(&mut table, &[&[1], &[2]], &mut |_| Ok(()))
                .unwrap(),
            [Vec::<u32>::new(), Vec::new()]
        );
        assert_eq!(table.asked, 2);
        let none = Writing {
            most: 50,
            ..writing
        }
        .respond(&mut Table::new(at_once), &[], &mut |_| Ok(()))
        .unwrap();
        assert!(none.is_empty());
    }

    #[test]
    fn what_heeds_the_writing_may_stop_it() {
        let writing = Writing {
            most: 50,
            beams: 2,
            start: START,
            end: END,
            vocabulary: 4,
        };
        let mut heard = 0;
        let stopped = writing.respond(
            &mut Table::new(|_| [0.0, 0.5, 0.5, 0.0]),
            &[&[1]],
            &mut |written| {
                heard = written;
                if written == 3 {
                    Err(TrialError::Interrupted)
                } else {
                    Ok(())
                }
            },
        );
        assert!(matches!(stopped, Err(TrialError::Interrupted)) && heard == 3);
    }
}
