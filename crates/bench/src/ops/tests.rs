use super::*;

fn plan(dir: &std::path::Path) -> Plan {
    Plan {
        dir: dir.join("made/deep").to_str().expect("text").to_owned(),
        procs: 2,
        files: 5,
        size: 100,
        transfer: 64,
        shared: false,
        one_file: false,
        random: false,
        passes: 1,
        shift: 1,
        ops: Op::ALL.iter().map(|(op, _)| *op).collect(),
        keep: false,
    }
}

/// Does all phases of a plan, with all workers in turns; what was moved in each, and what failed.
fn run(plan: &Plan) -> (Vec<(Op, Moved)>, Vec<Trouble>) {
    let mut loads: Vec<Load> = (0..plan.procs).map(|rank| Load::new(plan, rank)).collect();
    loads.iter_mut().for_each(|load| load.set_up().expect("directories"));
    let (mut moved, mut troubles) = (Vec::new(), Vec::new());
    for op in &plan.ops {
        let mut sum = Moved::default();
        for load in &mut loads {
            for index in 0..load.prepare(*op).expect("prepared") {
                match load.run(*op, index) {
                    Ok(more) => {
                        sum.bytes += more.bytes;
                        sum.entries += more.entries;
                    }
                    Err(trouble) => troubles.push(trouble),
                }
            }
        }
        loads.iter_mut().for_each(|load| load.finished(*op));
        moved.push((*op, sum));
    }
    loads.iter_mut().rev().for_each(|load| load.clean_up().expect("cleaned"));
    (moved, troubles)
}

#[test]
fn all_operations_work_on_each_other_s_files_and_nothing_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    for (shared, one_file, random) in [(false, false, false), (true, true, true), (true, false, true)] {
        let plan = Plan { shared, one_file, random, ..plan(dir.path()) };
        let (moved, troubles) = run(&plan);
        assert!(troubles.is_empty(), "{troubles:?}");
        for (op, sum) in moved {
            let bytes = match op {
                Op::Create | Op::Write | Op::Read => 1000,
                // Whole transfers only.
                Op::Pwrite | Op::Pread => 2 * 64,
                _ => 0,
            };
            assert_eq!(sum.bytes, bytes, "{op}");
            if matches!(op, Op::List | Op::Liststat) {
                // Files and directories; in a shared directory each of the two sees those of both.
                assert_eq!(sum.entries, if shared { 40 } else { 20 }, "{op}");
            }
        }
        assert!(!dir.path().join("made/deep").exists());
    }
}

#[test]
fn a_file_that_is_truncated_or_another_s_is_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = Plan { procs: 1, shift: 0, ops: vec![Op::Create], ..plan(dir.path()) };
    let mut load = Load::new(&plan, 0);
    load.set_up().expect("directories");
    load.prepare(Op::Create).expect("prepared");
    for index in 0..3 {
        load.run(Op::Create, index).expect("created");
    }
    let file = |index: u64| format!("{}/bench.0/f0.{index}", plan.dir);
    File::options().write(true).open(file(0)).expect("there").set_len(99).expect("truncated");
    fs::copy(file(2), file(1)).expect("copied");
    for (op, index) in [(Op::Stat, 0), (Op::Read, 0), (Op::Read, 1)] {
        assert!(matches!(load.run(op, index), Err(Trouble::Wrong(_))), "{op} {index}");
    }
    assert!(load.run(Op::Read, 2).is_ok() && load.run(Op::Stat, 1).is_ok());
    load.finished(Op::Create);
    // Three files, where the plan has five.
    assert!(matches!(load.run(Op::List, 0), Err(Trouble::Wrong(_))));
    assert!(matches!(load.run(Op::Read, 4), Err(Trouble::System(_))));
    load.clean_up().expect("cleaned");
    assert!(!dir.path().join("made/deep").exists());
}

#[test]
fn clean_up_leaves_what_is_not_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = Plan { procs: 1, ops: vec![Op::Create], ..plan(dir.path()) };
    let mut load = Load::new(&plan, 0);
    load.set_up().expect("directories");
    let stranger = format!("{}/bench.0/mine", plan.dir);
    let before = format!("{}/bench.0/f0.1", plan.dir);
    for path in [&stranger, &before] {
        fs::write(path, "x").expect("written");
    }
    load.prepare(Op::Create).expect("prepared");
    load.run(Op::Create, 0).expect("created");
    assert!(load.run(Op::Create, 1).is_err());
    load.finished(Op::Create);
    load.clean_up().expect("cleaned");
    assert_eq!(fs::read_dir(format!("{}/bench.0", plan.dir)).expect("there").count(), 2);
    assert!(fs::exists(stranger).expect("looked") && fs::exists(before).expect("looked"));
}

#[test]
fn a_shuffled_order_visits_every_place_once_and_is_the_same_each_time() {
    let mut shuffled = order(1000, true, 3);
    assert_eq!(shuffled, order(1000, true, 3));
    assert_ne!(shuffled, order(1000, true, 4));
    shuffled.sort_unstable();
    assert_eq!(shuffled, order(1000, false, 3));
}
