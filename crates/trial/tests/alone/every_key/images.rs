//! A few images in the forms that data kinds read: idx files, batches of CIFAR-10, folders of PNG
//! files.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, Crc, write::ZlibEncoder};

/// Writes all of them into `folder`; `look` makes them other images.
pub(crate) fn write(folder: &Path, look: usize) {
    for (part, count) in [("train", 40), ("t10k", 8)] {
        let pixels: Vec<u8> = (0..count)
            .flat_map(|number| pixels(look, number, 28 * 28))
            .collect();
        let labels: Vec<u8> = (0..count).map(|number| (number % 10) as u8).collect();
        fs::write(
            folder.join(format!("{part}-images-idx3-ubyte")),
            idx(&[2051, count as u32, 28, 28], &pixels),
        )
        .unwrap();
        fs::write(
            folder.join(format!("{part}-labels-idx1-ubyte")),
            idx(&[2049, count as u32], &labels),
        )
        .unwrap();
    }
    for (batch, name) in [
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
    ]
    .iter()
    .enumerate()
    {
        let record =
            |number| [vec![(number % 10) as u8], pixels(look, number, 3 * 32 * 32)].concat();
        let records: Vec<u8> = (0..8)
            .flat_map(|number| record(8 * batch + number))
            .collect();
        fs::write(folder.join(format!("{name}.bin")), records).unwrap();
    }
    for class in ["cat", "dog"] {
        for kept in ["folder", "spoilt"] {
            let files = folder.join(kept).join(class);
            fs::create_dir_all(&files).unwrap();
            for number in 0..20 {
                fs::write(
                    files.join(format!("{number}.png")),
                    png(
                        16,
                        12,
                        &pixels(look + class.len() * number, number, 3 * 16 * 12),
                    ),
                )
                .unwrap();
            }
        }
    }
    fs::write(folder.join("spoilt/dog/notes.txt"), "no image\n").unwrap();
}

fn pixels(look: usize, number: usize, count: usize) -> Vec<u8> {
    (0..count)
        .map(|place| (place * (look + number) / 3 + number * 29) as u8)
        .collect()
}

fn idx(header: &[u32], values: &[u8]) -> Vec<u8> {
    header
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .chain(values.iter().copied())
        .collect()
}

/// A PNG of 8-bit colors; `pixels` is [height, width, channels].
fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(
        &mut file,
        b"IHDR",
        &[
            &width.to_be_bytes()[..],
            &height.to_be_bytes(),
            &[8, 2, 0, 0, 0],
        ]
        .concat(),
    );
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    for row in pixels.chunks_exact(3 * width as usize) {
        // Filter 0: the bytes as they are.
        packed
            .write_all(&[0])
            .and_then(|()| packed.write_all(row))
            .unwrap();
    }
    chunk(&mut file, b"IDAT", &packed.finish().unwrap());
    chunk(&mut file, b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    let body = [kind, data].concat();
    let mut sum = Crc::new();
    sum.update(&body);
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(&body);
    file.extend(sum.sum().to_be_bytes());
}
