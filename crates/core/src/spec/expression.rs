//! Expressions of `sweep.derive`: arithmetic over the values of keys.
//!
//! In: a text such as `3e-4 * sqrt(train.batch_size / 8)`. Out: an [`Expression`], or what is wrong
//! with the text. Which keys there are, and their values, are left to others.

use super::suggest::{did_you_mean, listed};
use crate::units::shorten_line;

/// Most numbers, keys, signs and parentheses of an expression: they bound the depth of its tree.
const MOST_PARTS: usize = 200;
/// Characters of the text that a message shows.
const LONGEST_SHOWN: usize = 30;
/// Significant digits of a number that is not an integer: `0.1 * 3` is then `0.3`, the number that
/// one would write.
const DIGITS: usize = 15;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expression {
    root: Term,
    keys: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Number(f64),
    /// The index of a key.
    Key(usize),
    Negative(Box<Term>),
    Pair(Arithmetic, Box<Term>, Box<Term>),
    Call(Function, Vec<Term>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Sqrt,
    Min,
    Max,
    Floor,
    Ceil,
    Round,
}

impl Expression {
    /// Parses a text.
    ///
    /// # Errors
    /// The text is not an expression; the message says what was expected and found.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut parser = Parser {
            rest: text,
            keys: Vec::new(),
            parts: 0,
        };
        let root = parser.sum()?;
        if !parser.is_at_end() {
            return Err(parser.expected("`+`, `-`, `*`, `/` or the end"));
        }
        Ok(Self {
            root,
            keys: parser.keys,
        })
    }

    /// The keys, each once, in the order of the text.
    pub(super) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Computes the value; `of_keys` are the values of [`Expression::keys`].
    ///
    /// # Errors
    /// The expression has no value; the words follow the expression.
    pub(super) fn value(&self, of_keys: &[f64]) -> Result<f64, &'static str> {
        self.root.value(of_keys)
    }
}

impl Term {
    fn value(&self, of_keys: &[f64]) -> Result<f64, &'static str> {
        let value = match self {
            Self::Number(number) => *number,
            Self::Key(index) => of_keys.get(*index).copied().unwrap_or(f64::NAN),
            Self::Negative(term) => -term.value(of_keys)?,
            Self::Pair(operator, left, right) => {
                operator.apply(left.value(of_keys)?, right.value(of_keys)?)?
            }
            Self::Call(function, arguments) => {
                let values = arguments.iter().map(|argument| argument.value(of_keys));
                function.apply(&values.collect::<Result<Vec<f64>, _>>()?)?
            }
        };
        match value.is_finite() {
            true => Ok(value),
            false => Err("is too large"),
        }
    }
}

impl Arithmetic {
    fn apply(self, left: f64, right: f64) -> Result<f64, &'static str> {
        match self {
            Self::Add => Ok(left + right),
            Self::Subtract => Ok(left - right),
            Self::Multiply => Ok(left * right),
            Self::Divide if right == 0.0 => Err("divides by 0"),
            Self::Divide => Ok(left / right),
        }
    }
}

impl Function {
    const ALL: [Self; 6] = [
        Self::Sqrt,
        Self::Min,
        Self::Max,
        Self::Floor,
        Self::Ceil,
        Self::Round,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Sqrt => "sqrt",
            Self::Min => "min",
            Self::Max => "max",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Round => "round",
        }
    }

    fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|function| function.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            let hint = match did_you_mean(name, names) {
                hint if hint.is_empty() => format!("; functions are {}", listed(&names, "and")),
                hint => hint,
            };
            format!("unknown function `{name}`{hint}")
        })
    }

    fn takes_several(self) -> bool {
        matches!(self, Self::Min | Self::Max)
    }

    fn apply(self, values: &[f64]) -> Result<f64, &'static str> {
        let first = values.first().copied().unwrap_or(f64::NAN);
        let all = values.iter().copied();
        match self {
            Self::Sqrt if first < 0.0 => Err("takes the square root of a negative number"),
            Self::Sqrt => Ok(first.sqrt()),
            Self::Min => Ok(all.fold(first, f64::min)),
            Self::Max => Ok(all.fold(first, f64::max)),
            // `100 * 0.29` is 28.999999999999996 in binary.
            Self::Floor => Ok(without_noise(first).floor()),
            Self::Ceil => Ok(without_noise(first).ceil()),
            Self::Round => Ok(without_noise(first).round()),
        }
    }
}

/// The number without the noise of binary fractions: an integer as it is, any other to 15
/// significant digits.
pub(super) fn without_noise(number: f64) -> f64 {
    match number.fract() == 0.0 {
        true => number,
        false => to_digits(number, DIGITS),
    }
}

/// The number to this many significant digits.
pub(super) fn to_digits(number: f64, digits: usize) -> f64 {
    let rounded = format!("{number:.*e}", digits - 1);
    rounded.parse().unwrap_or(number)
}

/// Reads a text by recursive descent: a sum of products of factors.
struct Parser<'a> {
    rest: &'a str,
    keys: Vec<String>,
    parts: usize,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Term, String> {
        let mut left = self.product()?;
        loop {
            let operator = if self.take('+') {
                Arithmetic::Add
            } else if self.take('-') {
                Arithmetic::Subtract
            } else {
                return Ok(left);
            };
            let right = self.product()?;
            left = Term::Pair(operator, Box::new(left), Box::new(right));
        }
    }

    fn product(&mut self) -> Result<Term, String> {
        let mut left = self.factor()?;
        loop {
            let operator = if self.take('*') {
                Arithmetic::Multiply
            } else if self.take('/') {
                Arithmetic::Divide
            } else {
                return Ok(left);
            };
            let right = self.factor()?;
            left = Term::Pair(operator, Box::new(left), Box::new(right));
        }
    }

    fn factor(&mut self) -> Result<Term, String> {
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(format!(
                "an expression has at most {MOST_PARTS} numbers, keys, signs and parentheses"
            ));
        }
        if self.take('-') {
            return Ok(Term::Negative(Box::new(self.factor()?)));
        }
        if self.take('(') {
            let inner = self.sum()?;
            self.close()?;
            return Ok(inner);
        }
        self.skip_spaces();
        match self.rest.chars().next() {
            Some(letter) if letter.is_ascii_digit() || letter == '.' => self.number(),
            Some(letter) if letter.is_ascii_alphabetic() || letter == '_' => self.name(),
            _ => Err(self.expected("a number, a key or `(`")),
        }
    }

    fn number(&mut self) -> Result<Term, String> {
        let text = self.take_bytes(number_bytes(self.rest));
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map(Term::Number).ok_or_else(|| {
            let shown = shorten_line(&text, LONGEST_SHOWN);
            format!("`{shown}` is not a number")
        })
    }

    /// A key, or a function with its arguments.
    fn name(&mut self) -> Result<Term, String> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || "._".contains(letter);
        let end = self.rest.find(|letter: char| !is_part(letter));
        let name = self.take_bytes(end.unwrap_or(self.rest.len()));
        if self.take('(') {
            return self.call(&name);
        }
        let known = self.keys.iter().position(|key| *key == name);
        Ok(Term::Key(known.unwrap_or_else(|| {
            self.keys.push(name);
            self.keys.len() - 1
        })))
    }

    fn call(&mut self, name: &str) -> Result<Term, String> {
        let function = Function::named(name)?;
        let mut arguments = vec![self.sum()?];
        while self.take(',') {
            arguments.push(self.sum()?);
        }
        self.close()?;
        let (is_right, wanted) = match function.takes_several() {
            true => (arguments.len() > 1, "at least two values"),
            false => (arguments.len() == 1, "one value"),
        };
        match is_right {
            true => Ok(Term::Call(function, arguments)),
            false => Err(format!(
                "`{name}` takes {wanted}, and has {}",
                arguments.len()
            )),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        match self.take(')') {
            true => Ok(()),
            false => Err(self.expected("`)`")),
        }
    }

    /// Whether this sign is next; it is then read.
    fn take(&mut self, sign: char) -> bool {
        self.skip_spaces();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn take_bytes(&mut self, count: usize) -> String {
        let (taken, rest) = self.rest.split_at(count);
        let taken = taken.to_owned();
        self.rest = rest;
        taken
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_spaces();
        self.rest.is_empty()
    }

    fn expected(&mut self, wanted: &str) -> String {
        match self.is_at_end() {
            true => format!("expected {wanted}, found the end of the expression"),
            false => format!(
                "expected {wanted}, found `{}`",
                shorten_line(self.rest.trim_end(), LONGEST_SHOWN)
            ),
        }
    }
}

/// Bytes of the number at the beginning of a text: `8`, `0.5`, `3e-4`.
fn number_bytes(text: &str) -> usize {
    let digits = |from: usize| {
        text.bytes()
            .skip(from)
            .take_while(u8::is_ascii_digit)
            .count()
    };
    let mut end = digits(0);
    if text[end..].starts_with('.') {
        end += 1;
        end += digits(end);
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// The value where `a.b` is 24 and `c` is 2.
    fn value(text: &str) -> Result<f64, String> {
        let expression = Expression::read(text)?;
        let of_key = |key: &String| match key.as_str() {
            "a.b" => 24.0,
            "c" => 2.0,
            _ => f64::NAN,
        };
        let of_keys: Vec<f64> = expression.keys().iter().map(of_key).collect();
        expression.value(&of_keys).map_err(str::to_owned)
    }

    #[test]
    fn operators_bind_as_in_arithmetic() {
        let cases = [
            ("48 / a.b", 2.0),
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("8 - 4 - 2", 2.0),
            ("64 / 8 / 2", 4.0),
            ("8 / 2 * 4", 16.0),
            ("-c * -3", 6.0),
            ("2 - -c", 4.0),
            ("c*c+c", 6.0),
            ("3e-4 * sqrt(a.b / 6)", 6e-4),
            ("  .5 + 5. + 1E+1 ", 15.5),
            ("min(a.b, 8, c) + max(1, c)", 4.0),
            ("floor(2.5) + ceil(2.5) + round(2.5)", 8.0),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn integers_are_taken_of_the_number_that_one_would_write() {
        let cases = [
            ("floor(100 * 0.29)", 29.0),
            ("floor(-100 * 1.1)", -110.0),
            ("ceil(100 * 1.1)", 110.0),
            ("round(50 * 0.29)", 15.0),
            ("floor(28.9999)", 28.0),
            ("ceil(110.0001)", 111.0),
            ("floor(9007199254740991)", 9_007_199_254_740_991.0),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn each_key_is_named_once_in_the_order_of_the_text() {
        let expression = Expression::read("c / a.b + c * sqrt(a.b) + d_1.e").unwrap();
        assert_eq!(expression.keys(), ["c", "a.b", "d_1.e"]);
    }

    #[test]
    fn what_is_not_an_expression_says_what_was_expected() {
        let long = format!("1{}", "+1".repeat(MOST_PARTS));
        let deep = "(".repeat(100_000);
        let cases = [
            ("", "expected a number, a key or `(`, found the end"),
            ("64 /", "expected a number, a key or `(`, found the end"),
            ("c ** 2", "expected a number, a key or `(`, found `* 2`"),
            ("c ^ 2", "or the end, found `^ 2`"),
            ("2 c", "or the end, found `c`"),
            ("(c + 1", "expected `)`, found the end"),
            ("c)", "or the end, found `)`"),
            ("min(c, )", "expected a number, a key or `(`, found `)`"),
            ("sqr(c)", "unknown function `sqr`; did you mean `sqrt`?"),
            (
                "log(c)",
                "unknown function `log`; functions are `sqrt`, `min`",
            ),
            ("sqrt(1, 2)", "`sqrt` takes one value, and has 2"),
            ("min(1)", "`min` takes at least two values, and has 1"),
            ("1e999", "`1e999` is not a number"),
            (".", "`.` is not a number"),
            ("ü", "found `ü`"),
            (long.as_str(), "at most 200"),
            (deep.as_str(), "at most 200"),
        ];
        for (text, part) in cases {
            let found = value(text).unwrap_err();
            assert!(found.contains(part), "{text}: {found}");
        }
    }

    #[test]
    fn what_has_no_value_says_why() {
        let cases = [
            ("1 / (c - 2)", "divides by 0"),
            ("min(1, 1 / (c - 2))", "divides by 0"),
            ("sqrt(c - 3)", "takes the square root of a negative number"),
            ("1e300 * 1e300", "is too large"),
            ("1e300 / 1e-300", "is too large"),
        ];
        for (text, why) in cases {
            assert_eq!(value(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn any_text_is_an_expression_with_a_finite_value_or_is_refused_in_words() {
        let words = [
            "a.b", "c", "1", "0", ".5", "3e-4", "1e", "e", "+", "-", "*", "/", "(", ")", ",", " ",
            "sqrt(", "min(", "round(", "ü", "\n", "1e308",
        ];
        let mut random = Rng::with_seed(1);
        let mut computed = 0;
        for _ in 0..20_000 {
            let count = random.usize(1..12);
            let text: String = (0..count)
                .map(|_| words[random.usize(..words.len())])
                .collect();
            match value(&text) {
                Ok(value) => {
                    assert!(value.is_finite(), "{text}");
                    computed += 1;
                }
                Err(why) => assert!(!why.is_empty(), "{text}"),
            }
        }
        assert!(computed > 300, "{computed}: too few are expressions");
    }
}
