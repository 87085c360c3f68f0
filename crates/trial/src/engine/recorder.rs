//! The libtorch operators that a piece of work calls (`shim/recorder.cpp`), for tests and for
//! counts beside PyTorch's. Input: work. Output: its operators in their order, with their inputs.
//! Without recording it has no cost.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_char, c_int},
    ptr,
};

use super::shim::checked;
use crate::error::TrialError;

unsafe extern "C" {
    fn kiln_begin_recording() -> c_int;
    fn kiln_end_recording(text: *mut *const c_char) -> c_int;
}

/// One operator that was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedOperator {
    /// As libtorch names it, such as `aten::addmm`.
    pub name: String,
    /// Name of the operator's overload; often empty.
    pub overload: String,
    /// Number of operators that this call is nested in; 0 for calls from outside.
    pub depth: usize,
    /// Whether a device computes for it: it makes more than a view, and calls no other that does.
    pub is_work: bool,
    /// The tensors that went in, those in lists included.
    pub inputs: Vec<OperatorInput>,
}

/// A tensor that went into an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorInput {
    /// As libtorch names its kind of number, such as `Float`.
    pub kind: String,
    /// Such as `cpu` or `cuda:0`.
    pub device: String,
    /// Address of the first element; 0 without own memory.
    pub address: usize,
    pub shape: Vec<i64>,
    /// Whether its values lie one after the other.
    pub is_contiguous: bool,
}

/// Operators that only make a view, allocate memory or decide on the host: the device computes
/// nothing for them.
const WITHOUT_WORK: [&str; 38] = [
    "_fused_sdp_choice",
    "_has_compatible_shallow_copy_type",
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "detach",
    "detach_",
    "diagonal",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "expand_as",
    "lift_fresh",
    "narrow",
    "new_empty",
    "new_empty_strided",
    "permute",
    "requires_grad_",
    "reshape",
    "resize_",
    "resolve_conj",
    "resolve_neg",
    "result_type",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "to",
    "transpose",
    "unbind",
    "unsqueeze",
    "unflatten",
    "view",
];

fn makes_values(name: &str) -> bool {
    // libtorch's autograd reports its own steps, too.
    if name.starts_with("autograd::") {
        return false;
    }
    let short = name.rsplit("::").next().unwrap_or(name);
    !WITHOUT_WORK.contains(&short)
}

/// Runs `work` and returns the operators that this thread called meanwhile. Calls must not be
/// nested.
///
/// Errors: those of `work`.
pub fn record_operators<R>(
    work: impl FnOnce() -> Result<R, TrialError>,
) -> Result<(R, Vec<RecordedOperator>), TrialError> {
    // SAFETY: a call without pointers.
    checked(unsafe { kiln_begin_recording() })?;
    let given = super::guard_result(work);
    let mut text = ptr::null();
    // SAFETY: `text` is a place; the text lives until this thread's next recording ends.
    checked(unsafe { kiln_end_recording(&raw mut text) })?;
    // SAFETY: on success it is a NUL-terminated text.
    let operators = read(&unsafe { CStr::from_ptr(text) }.to_string_lossy());
    Ok((given?, operators))
}

/// Operators of another program's recording: of lines with depth and name between tabs, each
/// operator before those that it calls.
pub fn operators_of(lines: &str) -> Vec<RecordedOperator> {
    let whole: String = lines.lines().map(|line| format!("{line}\t\n")).collect();
    read(&whole)
}

/// Number of calls of each operator that does work, by its name.
pub fn work_by_name(operators: &[RecordedOperator]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for operator in operators.iter().filter(|operator| operator.is_work) {
        *counts.entry(operator.name.as_str()).or_default() += 1;
    }
    counts
}

fn read(text: &str) -> Vec<RecordedOperator> {
    let mut operators: Vec<RecordedOperator> = text.lines().filter_map(line).collect();
    // From the last to the first: at each depth, whether there was work below it since an operator
    // of that depth.
    let mut below: Vec<bool> = Vec::new();
    for operator in operators.iter_mut().rev() {
        below.resize(below.len().max(operator.depth + 2), false);
        let has_work_inside = std::mem::take(&mut below[operator.depth + 1]);
        operator.is_work = !has_work_inside && makes_values(&operator.name);
        below[operator.depth] |= has_work_inside || operator.is_work;
    }
    operators
}

fn line(line: &str) -> Option<RecordedOperator> {
    let mut cells = line.split('\t');
    let depth = cells.next()?.parse().ok()?;
    let (name, overload) = (cells.next()?.to_owned(), cells.next()?.to_owned());
    Some(RecordedOperator {
        name,
        overload,
        depth,
        is_work: false,
        inputs: cells.filter_map(input).collect(),
    })
}

fn input(cell: &str) -> Option<OperatorInput> {
    let mut words = cell.split(' ');
    let (kind, device) = (words.next()?.to_owned(), words.next()?.to_owned());
    let address = words.next()?.parse().ok()?;
    let is_contiguous = words.next()? == "1";
    Some(OperatorInput {
        kind,
        device,
        address,
        is_contiguous,
        shape: words.filter_map(|word| word.parse().ok()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_told_in_their_order_with_what_went_in() {
        let (a, b) = (
            tch::Tensor::ones([2, 3], (tch::Kind::Float, tch::Device::Cpu)),
            tch::Tensor::ones([4, 3], (tch::Kind::Float, tch::Device::Cpu)),
        );
        let (product, operators) =
            record_operators(|| Ok(a.linear(&b, None::<&tch::Tensor>))).unwrap();
        assert_eq!(product.size(), [2, 4]);
        assert_eq!(
            (
                operators[0].name.as_str(),
                operators[0].depth,
                operators[0].is_work
            ),
            ("aten::linear", 0, false)
        );
        let shapes: Vec<&[i64]> = operators[0]
            .inputs
            .iter()
            .map(|input| input.shape.as_slice())
            .collect();
        assert_eq!(shapes, [[2, 3], [4, 3]]);
        assert_eq!(operators[0].inputs[0].address, a.data_ptr() as usize);
        assert_eq!(
            (
                operators[0].inputs[1].kind.as_str(),
                operators[0].inputs[1].device.as_str()
            ),
            ("Float", "cpu")
        );
        assert_eq!(work_by_name(&operators), BTreeMap::from([("aten::mm", 1)]));
        let (_, nothing) = record_operators(|| Ok(())).unwrap();
        assert_eq!(nothing, []);
    }

    #[test]
    fn a_recording_ends_with_the_work_even_if_that_fails() {
        let bad = tch::Tensor::ones([2, 3], (tch::Kind::Float, tch::Device::Cpu));
        assert!(record_operators(|| Ok(bad.mm(&bad))).is_err());
        assert_eq!(
            record_operators(|| Ok(bad.relu())).unwrap().1[0].name,
            "aten::relu"
        );
    }

    #[test]
    fn an_operator_is_work_if_it_makes_values_and_no_other_makes_them_for_it() {
        let text = "0\taten::to\tdtype\n1\taten::_to_copy\t\n2\taten::empty_strided\t\n\
                    2\taten::copy_\t\n0\taten::mm\t\n1\taten::resolve_conj\t\n\
                    0\taten::view\t\n0\taten::add\tTensor";
        let work: Vec<String> = read(text)
            .into_iter()
            .filter(|operator| operator.is_work)
            .map(|operator| operator.name)
            .collect();
        assert_eq!(work, ["aten::copy_", "aten::mm", "aten::add"]);
        let others = operators_of("0\taten::to\n1\taten::_to_copy\n2\taten::copy_\n0\taten::t\n");
        assert_eq!(work_by_name(&others), BTreeMap::from([("aten::copy_", 1)]));
    }
}
