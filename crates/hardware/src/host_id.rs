//! Identity of the host. A machine id belongs to an image: every copy of it has the same.

use std::{fs, path::Path};

use sha2::{Digest, Sha256};

/// Hex digits of a hash that are kept: enough to tell hosts apart, and nothing to find one by.
const DIGITS: usize = 12;

/// `dmi-…` or `net-…`: the source, and a hash; `None` if nothing distinguishes this host from a
/// copy. Ids of different sources do not compare.
pub fn host_id() -> Option<String> {
    of(Path::new("/"))
}

/// By the addresses that the makers of its network cards gave them, which anybody may read, else by
/// the firmware's id of the board, which root may.
fn of(root: &Path) -> Option<String> {
    let hashed = |kind: &str, text: &str| {
        format!(
            "{kind}-{}",
            &hex::encode(Sha256::digest(format!("kiln host {text}")))[..DIGITS]
        )
    };
    let cards = addresses(&root.join("sys/class/net"));
    if !cards.is_empty() {
        return Some(hashed("net", &cards.join(" ")));
    }
    let board = fs::read_to_string(root.join("sys/class/dmi/id/product_uuid")).ok()?;
    let board = board.trim().to_ascii_lowercase();
    let digits: Vec<char> = board.chars().filter(char::is_ascii_hexdigit).collect();
    // Firmware without an id repeats the same digit.
    let is_one = digits.len() == 32 && digits.iter().any(|digit| *digit != digits[0]);
    is_one.then(|| hashed("dmi", &board))
}

/// Addresses of physical cards, as set by their makers, sorted. Addresses that software chose are
/// skipped: they are often the same in every copy of a virtual machine.
fn addresses(interfaces: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(interfaces) else {
        return Vec::new();
    };
    let address = |entry: fs::DirEntry| {
        let folder = entry.path();
        let address = fs::read_to_string(folder.join("address"))
            .ok()
            .filter(|_| folder.join("device").exists())?;
        let address = address.trim().to_ascii_lowercase();
        let first = u8::from_str_radix(address.get(..2)?, 16).ok()?;
        let is_given = first & 0b10 == 0 && address.len() == 17 && address != "00:00:00:00:00:00";
        is_given.then_some(address)
    };
    let mut found: Vec<String> = entries.flatten().filter_map(address).collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn card(root: &Path, name: &str, address: &str) {
        plant(
            root,
            &format!("sys/class/net/{name}/address"),
            &format!("{address}\n"),
        );
        fs::create_dir_all(root.join(format!("sys/class/net/{name}/device"))).unwrap();
    }

    #[test]
    fn a_host_is_known_by_its_cards_and_two_hosts_of_one_image_are_two() {
        let [one, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for (host, address) in [(&one, "3c:ec:ef:00:00:01"), (&other, "3c:ec:ef:00:00:02")] {
            plant(
                host.path(),
                "etc/machine-id",
                "0123456789abcdef0123456789abcdef\n",
            );
            plant(
                host.path(),
                "sys/class/net/lo/address",
                "00:00:00:00:00:00\n",
            );
            card(host.path(), "eth0", address);
        }
        let (first, second) = (of(one.path()).unwrap(), of(other.path()).unwrap());
        assert!(
            first.starts_with("net-")
                && first.len() == 4 + DIGITS
                && first != second
                && !first.contains("3cecef")
        );
        // A bridge of containers comes and goes.
        plant(
            one.path(),
            "sys/class/net/docker0/address",
            "02:42:00:00:00:01\n",
        );
        assert_eq!(of(one.path()).unwrap(), first);
    }

    #[test]
    fn what_every_copy_has_tells_no_host() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(of(host.path()), None);
        card(host.path(), "eth0", "02:fc:00:00:00:01");
        plant(
            host.path(),
            "etc/machine-id",
            "0123456789abcdef0123456789abcdef\n",
        );
        plant(
            host.path(),
            "sys/class/dmi/id/product_uuid",
            "00000000-0000-0000-0000-000000000000\n",
        );
        assert_eq!(of(host.path()), None);
        plant(
            host.path(),
            "sys/class/dmi/id/product_uuid",
            "4C4C4544-0031-3510-8057-B8C04F4D3732\n",
        );
        assert!(of(host.path()).unwrap().starts_with("dmi-"));
    }
}
