//! NVIDIA's libraries pack their versions into numbers, each in its own way; libtorch has its own
//! in the description of its build.

/// The value of `KEY=value` in libtorch's words on its build.
pub(super) fn build_setting<'a>(build: &'a str, key: &str) -> Option<&'a str> {
    let parts = build.split([',', '\n']).map(str::trim);
    let mut values = parts.filter_map(|part| {
        part.rsplit_once('=')
            .filter(|(name, _)| name.rsplit(' ').next() == Some(key))
    });
    values.find_map(|(_, value)| Some(value.trim()).filter(|value| !value.is_empty()))
}

/// major × `major` + minor × `minor` + patch.
fn parts(number: i64, major: i64, minor: i64) -> String {
    format!(
        "{}.{}.{}",
        number / major,
        number % major / minor,
        number % minor
    )
}

/// 130102 is `13.1.2`.
pub(super) fn cublas(number: i64) -> String {
    parts(number, 10_000, 100)
}

/// 13000 is `13.0`.
pub(super) fn cuda(number: i64) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// cuDNN counts the major version in ten thousands from 9 on, in thousands before.
pub(super) fn cudnn(number: i64) -> String {
    if number >= 90_000 {
        parts(number, 10_000, 100)
    } else {
        parts(number, 1000, 100)
    }
}

/// NCCL counts the major version in ten thousands from 2.9 on, in thousands before.
pub(super) fn nccl(number: i64) -> String {
    if number >= 10_000 {
        parts(number, 10_000, 100)
    } else {
        parts(number, 1000, 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_versions_read_as_their_makers_write_them() {
        assert_eq!([cuda(13_000), cuda(12_080)], ["13.0", "12.8"]);
        assert_eq!([cudnn(91_501), cudnn(8907)], ["9.15.1", "8.9.7"]);
        assert_eq!([nccl(22_809), nccl(2804)], ["2.28.9", "2.8.4"]);
        assert_eq!(cublas(130_102), "13.1.2");
    }
}
