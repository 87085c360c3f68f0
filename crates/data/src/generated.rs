//! A generated text: small, the same bytes on every machine, with structure to learn.
//!
//! Each line is a scene: its place and hero are chosen once, every sentence of the line uses them,
//! and a verb decides which things may follow it. So letters can be predicted from the word, words
//! from the verb, and names from the start of the line: a longer context helps. All draws are
//! integers from SplitMix64; a shorter text is the start of a longer one.

use kiln_core::kinds::random::SplitMix64;

/// An arbitrary seed; changing it changes the text and every result based on it.
const SEED: u64 = 0x6b69_6c6e;

const HEROES: [&str; 8] = [
    "Anna", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo",
];
const PLACES: [&str; 6] = ["harbour", "forest", "market", "castle", "river", "workshop"];
const MANNERS: [&str; 6] = [
    "slowly",
    "quickly",
    "quietly",
    "gladly",
    "carefully",
    "again",
];
const COLOURS: [&str; 6] = ["red", "blue", "green", "white", "black", "golden"];
/// A verb and its possible objects.
const DEEDS: [(&str, [&str; 4]); 6] = [
    ("carries", ["basket", "lantern", "barrel", "ladder"]),
    ("reads", ["letter", "map", "book", "sign"]),
    ("mends", ["boat", "net", "wheel", "roof"]),
    ("feeds", ["horse", "goose", "kitten", "pigeon"]),
    ("sings", ["song", "ballad", "hymn", "tune"]),
    ("burns", ["brick", "tile", "cup", "plate"]),
];

/// Returns the first `characters` characters of the text; all are ASCII.
pub fn text(characters: u64) -> String {
    let length = usize::try_from(characters).unwrap_or(usize::MAX);
    let mut random = SplitMix64::new(SEED);
    let mut text = String::new();
    while text.len() < length {
        add_line(&mut text, &mut random);
    }
    text.truncate(length);
    text
}

fn add_line(text: &mut String, random: &mut SplitMix64) {
    let hero = pick(random, &HEROES);
    let place = pick(random, &PLACES);
    text.push_str(&format!("At the {place}, {hero} begins."));
    for _ in 0..2 + random.below(4) {
        text.push(' ');
        text.push_str(&sentence(random, hero, place));
    }
    text.push('\n');
}

fn sentence(random: &mut SplitMix64, hero: &str, place: &str) -> String {
    let (verb, things) = pick(random, &DEEDS);
    let thing = pick(random, &things);
    match random.below(4) {
        0 => format!("{hero} {verb} the {} {thing}.", pick(random, &COLOURS)),
        1 => format!("{hero} {verb} a {thing} at the {place}."),
        2 => format!("Then {hero} {} {verb} the {thing}.", pick(random, &MANNERS)),
        _ => format!(
            "The {thing} is {}, so {hero} {verb} it.",
            pick(random, &COLOURS)
        ),
    }
}

fn pick<T: Copy>(random: &mut SplitMix64, items: &[T]) -> T {
    items[random.below(items.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_text_is_the_same_everywhere() {
        let made = text(200_000);
        assert_eq!(made.len(), 200_000);
        assert_eq!(
            hex::encode(Sha256::digest(&made)),
            "78f6dc62067b0e1b76c56b7b77a0f4a39208d7341cd0d779687d318f473182f0"
        );
        assert!(made.starts_with(&text(1000)));
    }

    #[test]
    fn it_is_plain_text_of_lines() {
        let made = text(20_000);
        assert!(made.is_ascii());
        assert!(made.lines().filter(|line| line.ends_with('.')).count() > 50);
        let characters: std::collections::BTreeSet<char> = made.chars().collect();
        assert!((25..64).contains(&characters.len()), "{}", characters.len());
    }
}
