//! Reading many files at once, while others change the paths to them.

mod common;

use bivouac_client::Client;
use bivouac_client::host::Plain;
use bivouac_layout::Ino;
use common::cluster;

#[test]
fn files_are_those_that_the_paths_lead_to_now() {
    let c = cluster("many-moved", 3);
    for (dir, what) in [("d", "old"), ("new", "new")] {
        c.client.mkdir(Ino::ROOT, dir.as_bytes(), 0o755).expect("made");
        for i in 0..20 {
            c.write(&format!("{dir}/{i}"), format!("{what} {i}").as_bytes());
        }
    }
    let reader = Client::attach(&c.environment, &Plain).expect("attached");
    let paths: Vec<String> = (0..20).map(|i| format!("d/{i}")).collect();
    let paths: Vec<&[u8]> = paths.iter().map(String::as_bytes).collect();
    let read = || -> Vec<String> {
        let files = reader.read_files(Ino::ROOT, &paths).into_iter();
        files.map(|file| String::from_utf8(file.expect("read")).expect("text")).collect()
    };
    assert_eq!(read(), (0..20).map(|i| format!("old {i}")).collect::<Vec<_>>());
    for (from, to) in [("d", "gone"), ("new", "d")] {
        c.client.rename(Ino::ROOT, from.as_bytes(), Ino::ROOT, to.as_bytes(), 0).expect("renamed");
    }
    assert_eq!(read(), (0..20).map(|i| format!("new {i}")).collect::<Vec<_>>());
    c.client.rename(Ino::ROOT, b"d", Ino::ROOT, b"away", 0).expect("renamed");
    assert!(reader.read_files(Ino::ROOT, &paths).iter().all(Result::is_err));
    reader.detach();
}
