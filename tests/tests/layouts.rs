//! `bivouac layout`, the deployment's defaults, and the extended attributes: what users see of how files are
//! spread.

use bivouac_tests::Site;

/// What `bivouac layout` prints for one path, line by line without the spaces.
fn shown(site: &Site, deployment: &str, path: &str) -> Vec<String> {
    let out = site.bivouac(["layout", "-d", deployment, path]).ok();
    out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The servers that store any of a file.
fn holders(site: &Site, deployment: &str, path: &str) -> Vec<String> {
    let lines = shown(site, deployment, path);
    let stores = |line: &&String| line.starts_with("server") && !line.ends_with(" 0 B");
    lines.iter().filter(stores).map(|line| line.split(' ').nth(1).expect("a number").to_owned()).collect()
}

#[test]
fn a_directorys_layout_is_set_inherited_shown_and_cleared() {
    let site = Site::new("layout");
    let deployment = site.up(4);
    site.sh(&deployment, "mkdir -p /bivouac/d && echo small > /bivouac/plain").ok();
    let all = "new files block=512K width=all first=hashed";
    assert_eq!(shown(&site, &deployment, "/d"), ["/d", "set here nothing", all]);
    let set =
        ["layout", "-d", &deployment, "--block-size", "64K", "--width", "2", "--first", "3", "/bivouac/d"];
    site.bivouac(set).ok();
    let script = "mkdir /bivouac/d/sub && head -c 1000000 /dev/zero | tr '\\0' x > /bivouac/d/sub/f";
    site.sh(&deployment, script).ok();
    let file = shown(&site, &deployment, "/bivouac/d/sub/f");
    assert_eq!(file[1], "layout block=64K width=2 first=3");
    assert_eq!(holders(&site, &deployment, "/d/sub/f"), ["3", "0"]);
    assert!(shown(&site, &deployment, "/plain")[2].ends_with("in its inode"));
    // Inside, without naming the deployment; relative paths, too.
    let own = bivouac_tests::bivouac().display().to_string();
    let out = site
        .sh(&deployment, &format!("cd /bivouac/d && {own} layout sub && {own} layout --width all sub"))
        .ok();
    assert!(out.contains("set here   block=64K width=2 first=3"), "{out}");
    assert_eq!(shown(&site, &deployment, "/d/sub")[1], "set here block=64K width=all first=3");
    site.bivouac(["layout", "-d", &deployment, "--default", "/d/sub"]).ok();
    assert_eq!(shown(&site, &deployment, "/d/sub")[1], "set here nothing");
    // A new file, as with lfs setstripe.
    site.bivouac(["layout", "-d", &deployment, "--width", "1", "--first", "2", "/made"]).ok();
    site.sh(&deployment, "head -c 3000000 /dev/zero | tr '\\0' x > /bivouac/made").ok();
    assert_eq!(holders(&site, &deployment, "/made"), ["2"]);
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let site = Site::new("layout-refused");
    let deployment = site.up(2);
    site.sh(&deployment, "mkdir /bivouac/d && echo data > /bivouac/full && ln -s /etc /bivouac/out").ok();
    let layout = |args: &[&str]| site.bivouac(["layout", "-d", &deployment].iter().chain(args));
    layout(&["--block-size", "5K", "/d"]).fails(65, &["block=5K", "multiples of 4K"]);
    layout(&["--width", "0", "/d"]).fails(65, &["width=0", "from 1"]);
    layout(&["--first", "2", "/d"]).fails(65, &["first=2", "bivouac status"]);
    layout(&["--first", "near", "/d"]).fails(65, &["first=near", "local"]);
    layout(&["--width", "1", "/full"]).fails(65, &["it has data", "set it for the directory"]);
    layout(&["--width", "1", "/absent/x"]).fails(65, &["/absent/x", "check the path"]);
    layout(&["/absent"]).fails(65, &["/absent", "check the path"]);
    layout(&["/out"]).fails(65, &["leads out of the mount"]);
    site.bivouac(["layout", "/d"]).fails(65, &["no deployment is named", "--deployment"]);
    let own = bivouac_tests::bivouac().display();
    site.sh(&deployment, &format!("{own} layout /tmp")).fails(65, &["not in the mount"]);
}

#[test]
fn defaults_of_a_deployment_hold_where_directories_say_nothing() {
    let site = Site::new("layout-defaults");
    let deployment = site.up_with(4, &["--first", "local", "--width", "1", "--block-size", "1M"]);
    let script = "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero | tr '\\0' x > /bivouac/f$i; done";
    site.sh(&deployment, script).ok();
    let mut used: Vec<Vec<String>> =
        (1..=8).map(|i| holders(&site, &deployment, &format!("/f{i}"))).collect();
    assert!(used.iter().all(|servers| servers.len() == 1), "{used:?}");
    used.sort();
    used.dedup();
    assert!(used.len() > 1, "local files use all servers of their node: {used:?}");
    // Kept over a restart.
    site.bivouac(["down", &deployment, "--keep"]).ok();
    site.bivouac(["up", &deployment]).ok();
    assert_eq!(shown(&site, &deployment, "/")[2], "new files block=1M width=1 first=local");
    site.bivouac(["down", &deployment, "--keep"]).ok();
    site.bivouac(["up", &deployment, "--width", "2"]).fails(65, &["its own"]);
    site.bivouac(["up", &deployment]).ok();
}

#[test]
fn extended_attributes_show_and_set_the_layout() {
    let site = Site::new("layout-xattr");
    let deployment = site.up(4);
    let script = r"
import os, errno, subprocess
W = 'user.bivouac.layout'
def attempt(f, *args):
    try:
        return f(*args)
    except OSError as e:
        return errno.errorcode[e.errno]
os.chdir('/bivouac')
os.mkdir('d')
print(attempt(os.getxattr, 'd', W), os.listxattr('d'))
os.setxattr('d', W, b'block=1M width=2')
subprocess.run(['cp', '-a', 'd', 'copy'], check=True)
print(os.listxattr('d'), os.listxattr('copy'), os.getxattr('copy', W))
os.setxattr('d', 'user.bivouac.first', b'1')
os.setxattr('d', 'user.other', b'kept')
print(os.getxattr('d', W), sorted(os.listxattr('d')))
with open('d/f', 'wb') as f:
    print(os.getxattr(f.fileno(), W), os.listxattr(f.fileno()))
    f.write(b'x' * 3000000)
print(attempt(os.setxattr, 'd/f', W, b'width=1'), attempt(os.setxattr, 'd', W, b'width=many'))
os.removexattr('d', W)
print(os.listxattr('d'), attempt(os.getxattr, 'd', 'user.bivouac.block'))
print(attempt(os.setxattr, 'd', 'user.bivouac.colour', b'red'))";
    let out = site.sh(&deployment, &format!("python3 -B - <<'END'\n{script}\nEND")).ok();
    let expected = [
        "ENODATA []",
        "['user.bivouac.layout'] ['user.bivouac.layout'] b'block=1M width=2'",
        "b'block=1M width=2 first=1' ['user.bivouac.layout', 'user.other']",
        "b'block=1M width=2 first=1' []",
        "ENOTEMPTY EINVAL",
        "['user.other'] ENODATA",
        "EINVAL",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
    assert_eq!(holders(&site, &deployment, "/d/f"), ["1", "2"]);
    // `cp -a` takes a directory's layout along, and no file's place; `flush` and `preload`, too.
    site.sh(&deployment, "cd /bivouac && cp -a d e && cmp d/f e/f").ok();
    let there = site.path("there");
    site.bivouac(["flush", &deployment, "/bivouac/copy", &there.to_string_lossy()]).ok();
    site.bivouac(["preload", &deployment, &there.to_string_lossy(), "/bivouac/back"]).ok();
    assert_eq!(shown(&site, &deployment, "/back")[1..], shown(&site, &deployment, "/copy")[1..]);
}
