//! Several questions asked together: the chance of one false alarm among all of them stays at [`ALPHA`].

use super::{
    ALPHA, Sides,
    contrast::{Analysis, Estimate},
};

/// Two sides, with what counts as a change and how much of the level the question has.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub sides: Sides,
    /// The least change that counts, as a share.
    pub worth: f64,
    /// Its part of the level in relation to the other questions; above 0.
    pub weight: f64,
}

/// An estimate for each question, whose sides have [`super::FEWEST_RUNS`] runs or more each. The intervals are adjusted by Holm's weighted procedure (1979):
/// the chance of one false alarm among all of them is at most [`ALPHA`].
pub fn estimates(questions: &[Question]) -> Vec<Estimate> {
    let analyses: Vec<Analysis> = questions.iter().map(|question| Analysis::of(&question.sides)).collect();
    let p: Vec<f64> = analyses.iter().map(Analysis::p).collect();
    let mut order: Vec<usize> = (0..questions.len()).collect();
    order.sort_by(|one, other| (p[*one] / questions[*one].weight).total_cmp(&(p[*other] / questions[*other].weight)));
    let mut rest: f64 = questions.iter().map(|question| question.weight).sum();
    let mut levels = vec![ALPHA; questions.len()];
    let mut share = 0.0;
    let mut is_over = false;
    for place in order {
        // What is not told apart ends the steps: the questions after it have their share of the level that is left.
        if !is_over {
            share = ALPHA / rest;
            is_over = p[place] > share * questions[place].weight;
            rest -= questions[place].weight;
        }
        levels[place] = (share * questions[place].weight).min(ALPHA);
    }
    analyses.iter().zip(levels).zip(questions).map(|((analysis, level), question)| analysis.estimate(level, question.worth)).collect()
}
