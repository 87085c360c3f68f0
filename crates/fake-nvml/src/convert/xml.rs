//! Reads `nvidia-smi -q -x` XML into the same page as the text: tags become the labels that the
//! text of the same driver has.

use roxmltree::{Document, Node as Element};

use super::{ConvertError, Node, Page};

/// Tags below `<gpu>`, and the labels that mean the same; lists (MIG devices, processes) are read
/// on their own.
const TAGS: &str = include_str!("tags.csv");

/// `xml` begins at its root element: a capture may have comments where XML allows none.
pub(super) fn read(xml: &str) -> Result<Page, ConvertError> {
    const END: &str = "</nvidia_smi_log>";
    let end = xml.find(END).map_or(xml.len(), |at| at + END.len());
    let document = Document::parse(xml.get(..end).unwrap_or(xml))?;
    let root = document.root_element();
    let mut page = Page::default();
    for child in root.children().filter(Element::is_element) {
        let label = match child.tag_name().name() {
            "timestamp" => "Timestamp",
            "driver_version" => "Driver Version",
            "cuda_version" => "CUDA Version",
            "kmd_version" => "KMD Version",
            "cuda_umd_version" => "CUDA UMD Version",
            "attached_gpus" => "Attached GPUs",
            "gpu" => {
                page.gpus.push(gpu(child));
                continue;
            }
            _ => continue,
        };
        page.head.push(Node::new(label, Some(text(child))));
    }
    Ok(page)
}

fn gpu(element: Element<'_, '_>) -> Node {
    let mut gpu = Node::new(element.attribute("id").unwrap_or_default(), None);
    put_all(&mut gpu, element, "");
    gpu
}

/// Walks the tags in the order they are printed in.
fn put_all(gpu: &mut Node, element: Element<'_, '_>, above: &str) {
    for child in element.children().filter(Element::is_element) {
        let name = child.tag_name().name();
        let path = if above.is_empty() {
            name.to_owned()
        } else {
            format!("{above}/{name}")
        };
        match path.as_str() {
            "mig_devices" => gpu
                .children
                .extend(child.children().filter(Element::is_element).map(mig)),
            "processes" => gpu.children.push(processes(child)),
            "supported_clocks" | "accounted_processes" => {}
            _ if child.children().any(|inner| inner.is_element()) => put_all(gpu, child, &path),
            _ => {
                if let Some(label) = label(&path) {
                    gpu.put(label, &cell(name, &text(child)), false);
                }
            }
        }
    }
}

fn label(path: &str) -> Option<&'static str> {
    TAGS.lines().find_map(|line| {
        line.split_once(',')
            .filter(|(tag, _)| *tag == path)
            .map(|(_, label)| label)
    })
}

fn text(element: Element<'_, '_>) -> String {
    element.text().unwrap_or_default().trim().to_owned()
}

/// Numbers that the text writes with `0x` and the XML without.
fn cell(tag: &str, text: &str) -> String {
    let is_hexadecimal = matches!(
        tag,
        "pci_bus"
            | "pci_device"
            | "pci_domain"
            | "pci_base_class"
            | "pci_sub_class"
            | "pci_device_id"
            | "pci_sub_system_id"
    );
    let is_bare = !text.starts_with("0x")
        && !text.is_empty()
        && text.chars().all(|letter| letter.is_ascii_hexdigit());
    if is_hexadecimal && is_bare {
        format!("0x{text}")
    } else {
        text.to_owned()
    }
}

fn mig(element: Element<'_, '_>) -> Node {
    const LABELS: [(&str, &str); 17] = [
        ("index", "Index"),
        ("gpu_instance_id", "GPU Instance ID"),
        ("compute_instance_id", "Compute Instance ID"),
        (
            "device_attributes/shared/multiprocessor_count",
            "Device Attributes > Shared > Multiprocessor count",
        ),
        (
            "device_attributes/shared/copy_engine_count",
            "Device Attributes > Shared > Copy Engine count",
        ),
        (
            "device_attributes/shared/encoder_count",
            "Device Attributes > Shared > Encoder count",
        ),
        (
            "device_attributes/shared/decoder_count",
            "Device Attributes > Shared > Decoder count",
        ),
        (
            "device_attributes/shared/ofa_count",
            "Device Attributes > Shared > OFA count",
        ),
        (
            "device_attributes/shared/jpg_count",
            "Device Attributes > Shared > JPG count",
        ),
        (
            "ecc_error_count/volatile_count/sram_uncorrectable",
            "ECC Errors > Volatile > SRAM Uncorrectable",
        ),
        ("fb_memory_usage/total", "Shared FB Memory Usage > Total"),
        (
            "fb_memory_usage/reserved",
            "Shared FB Memory Usage > Reserved",
        ),
        ("fb_memory_usage/used", "Shared FB Memory Usage > Used"),
        ("fb_memory_usage/free", "Shared FB Memory Usage > Free"),
        ("bar1_memory_usage/total", "Shared BAR1 Memory > Total"),
        ("bar1_memory_usage/used", "Shared BAR1 Memory > Used"),
        ("bar1_memory_usage/free", "Shared BAR1 Memory > Free"),
    ];
    let mut node = Node::new("MIG Device", None);
    for (path, label) in LABELS {
        let found = path.split('/').try_fold(element, |inside, tag| {
            inside.children().find(|child| child.has_tag_name(tag))
        });
        if let Some(found) = found {
            node.put(label, &text(found), false);
        }
    }
    node
}

/// As the text has it: `None` in the cell, or the processes below.
fn processes(element: Element<'_, '_>) -> Node {
    let mut node = Node::new("Processes", None);
    for process in element
        .children()
        .filter(|child| child.has_tag_name("process_info"))
    {
        let of = |tag: &str| {
            process
                .children()
                .find(|child| child.has_tag_name(tag))
                .map(text)
        };
        node.children
            .push(Node::new("GPU instance ID", of("gpu_instance_id")));
        node.children
            .push(Node::new("Compute instance ID", of("compute_instance_id")));
        let mut pid = Node::new("Process ID", of("pid"));
        pid.children = vec![
            Node::new("Type", of("type")),
            Node::new("Name", of("process_name")),
            Node::new("Used GPU Memory", of("used_memory")),
        ];
        node.children.push(pid);
    }
    if node.children.is_empty() {
        let text = text(element);
        node.cell = Some(if text.is_empty() {
            "None".to_owned()
        } else {
            text
        });
    }
    node
}
