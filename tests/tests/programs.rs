//! Real programs, unchanged, on four servers: each does the same as on a local directory.

use bivouac_tests::{Site, same_as_local};

#[test]
fn cp_r() {
    same_as_local(
        "cp-r",
        "cp -r \"$INPUT\" tree; cp -r tree again; diff -r --no-dereference \"$INPUT\" again",
    );
}

#[test]
fn cp_a() {
    let script = "cp -a \"$INPUT\" tree; cp -a tree again; diff -r --no-dereference \"$INPUT\" again
find again -printf '%P %y %m %n %T@ %U %G\\n' | sort";
    same_as_local("cp-a", script);
}

#[test]
fn mv() {
    let script = "cp -a \"$INPUT\" tree; mv tree moved; mv moved/numbers n; mv n moved/deep/a/; mkdir t; mv -t t moved/one moved/link
mv moved/deep moved/headers/deep2; echo old > old; echo new > new; mv -f new old; cat old
mv -n old moved/zero; ls; mv moved/headers \"$S\"/out; ls \"$S\"/out | wc -l; mv \"$S\"/out back
! mv nosuch x 2>/dev/null; ! mv moved moved/deep3 2>/dev/null";
    same_as_local("mv", script);
}

#[test]
fn rm_r() {
    let script = "cp -r \"$INPUT\" tree; rm tree/one; rm -r tree/headers; ls tree; ! rmdir tree 2>/dev/null
! rm tree 2>/dev/null; rm -rf tree; ls -a; ! ls tree 2>/dev/null; rm -f nosuch";
    same_as_local("rm-r", script);
}

#[test]
fn ls_l_recursive() {
    // Sizes of directories and block counts are each file system's own business.
    let script = "cp -a \"$INPUT\" tree; ls -lR --time-style=+%s tree | grep -v ^total | awk '/^d/ { $5 = \"-\" } { print }'
ls -la tree/names | awk '!/^total/ { print $1, $2, $9, $10 }'; ls -1f tree/names | sort; ls -i tree | wc -l; ls -F tree; ls -S tree/headers | sed -n 1,3p";
    same_as_local("ls-lr", script);
}

#[test]
fn find() {
    let script = "cp -a \"$INPUT\" tree; find tree | sort; find tree -name '*.h' -size +20k | sort; find tree -type l | sort
find -L tree -name '*.h' | wc -l; find tree -newermt 2021-03-04 ! -newermt 2021-03-05 | wc -l; find tree -empty | sort; find tree -perm 600
find tree -links 2 -type f | sort; find tree -depth -name 'a*' -type f -print -delete | sort; find tree -samefile tree/hard | sort";
    same_as_local("find", script);
}

#[test]
fn du() {
    // Allocated sizes are each file system's own business; apparent sizes of files are not.
    let script = "cp -a \"$INPUT\" tree; find tree -type f -print0 | sort -z | du -b --files0-from=- -c; du -a -l --inodes tree | sort -k2";
    same_as_local("du", script);
}

#[test]
fn grep_r() {
    let script = "cp -r \"$INPUT\" tree; grep -rn struct tree/headers | sort | sha256sum; grep -rlw int tree --include='*.h' | sort
grep -c 7 tree/numbers; grep -rL include tree/headers | sort; ! grep -q nosuchword tree/numbers; grep -o ' 4242$' tree/numbers";
    same_as_local("grep-r", script);
}

#[test]
fn sort_with_temporary_files_inside() {
    let script = "mkdir tmp; for i in 1 2 3 4 5; do sed \"s/\\$/ $i/\" \"$INPUT\"/numbers; done > big; wc -c big
sort -S 1M -T tmp big > sorted; sha256sum sorted; sort -S 1M -T tmp --parallel=2 -n -k2 -u big -o big; wc -l big; ls tmp; sort -c sorted; sort -m sorted sorted | wc -l";
    same_as_local("sort-t", script);
}

#[test]
fn tar_both_ways() {
    let script = "tar cf in.tar -C \"$INPUT\" .; mkdir tree; tar xpf in.tar -C tree; tar df in.tar -C tree; tar cf again.tar --sort=name -C tree .
tar tf again.tar | sort; tar xOf in.tar ./numbers | sha256sum; tar czf z.tgz -C tree headers; mkdir z; tar xzf z.tgz -C z; tar cf - -C tree deep | tar xf - -C z
mkdir out && tar xpf in.tar -C \"$S\"; diff -r --no-dereference \"$INPUT\" tree; find tree -type f -printf '%P %m %T@\\n' | sort; rm in.tar again.tar z.tgz; echo x > a; tar rf r.tar a; echo y > b; tar rf r.tar b; tar tf r.tar; rm r.tar";
    same_as_local("tar", script);
}

#[test]
fn gzip() {
    let script = "cp \"$INPUT\"/numbers .; cp -r \"$INPUT\"/headers h; gzip -n numbers; ls; gzip -t numbers.gz; gzip -l numbers.gz; zcat numbers.gz | sha256sum
gunzip numbers.gz; gzip -nr h; find h -name '*.gz' | wc -l; gunzip -r h; gzip -nc numbers > n.gz; gzip -dc < n.gz | cmp - numbers";
    same_as_local("gzip", script);
}

#[test]
fn dd() {
    let script = "q() { dd status=none \"$@\"; }; q if=\"$INPUT\"/large of=a bs=64k; q if=a of=b bs=1000001; cmp a b; q if=a of=c bs=4k skip=3 count=7; wc -c c
q if=\"$INPUT\"/one of=c bs=1 seek=100000 conv=notrunc; wc -c c; q if=/dev/zero of=s bs=1M seek=1000 count=0; stat -c %s s; q if=a of=d bs=1M conv=fsync oflag=append
q if=a of=d bs=1M conv=notrunc oflag=append; wc -c d; q if=a of=e bs=512 count=3 oflag=sync; q if=\"$INPUT\"/sparse of=f conv=sparse bs=4k; cmp f \"$INPUT\"/sparse; q if=d of=/dev/null iflag=direct bs=4k || echo no direct; rm s";
    same_as_local("dd", script);
}

#[test]
fn sha256sum_and_wc() {
    let script = "cp -r \"$INPUT\" tree; find tree -type f | sort | grep -v $'\\n' | tr '\\n' '\\0' | xargs -0 sha256sum > sums 2>/dev/null || true; grep -v names sums > s2; sha256sum -c s2 | tail -3; sha256sum --quiet -c s2
wc tree/numbers tree/large tree/zero tree/deep/a/b/c/seq; wc -l < tree/numbers; md5sum tree/sparse; cksum tree/one; b2sum tree/large; tail -n 3 tree/numbers; head -n 3 tree/numbers; tail -c 7 tree/sparse; tac tree/deep/a/b/c/seq | sed -n 1,2p; split -n 4 tree/numbers p.; cat p.* | cmp - tree/numbers; cut -d' ' -f1 tree/numbers | uniq | wc -l; rm -r tree sums s2";
    same_as_local("sums", script);
}

#[test]
fn touch() {
    let script = "touch a; touch -d '2001-02-03 04:05:06.789012345 UTC' a; stat -c '%y %s' a; touch -r a b; stat -c %y b; touch -a -d '2010-01-01 UTC' b; stat -c '%x %y' b
touch -c nosuch; ls; touch -m -d @0 b; stat -c %Y b; ln -s a l; touch -h -d @5 l; stat -c %Y l a; mkdir d; touch -d @77 d; stat -c %Y d; touch d/x; test d -nt a && echo newer; ! touch no/such 2>/dev/null";
    same_as_local("touch", script);
}

#[test]
fn ln() {
    let script = "echo x > a; ln a b; stat -c '%h' a; echo y >> b; cat a; rm a; cat b; stat -c %h b; mkdir d; ln b d/c; ! ln b d/c 2>/dev/null; ln -f b d/c; ln -s d e; ls e/; ln -s \"$D\"/b abs; cat abs; readlink abs e
ln -s loop loop; ! cat loop 2>/dev/null; ! ln d hard 2>/dev/null; realpath -m e/../b; readlink -f e/c; ln -sfn . e; ls e; ln -s \"$S\" outside; echo o > outside/f; cat \"$S\"/f; ln -s ../.. up; test -e up/. && echo up; cd e; pwd; rm abs";
    same_as_local("ln", script);
}

#[test]
fn bash_redirections() {
    let script = r#"echo one > f; echo two >> f; cat < f; cat <<END > h
here $((1 + 2))
END
cat h; cat <<< word >> h; while read -r line; do echo "got $line"; done < h; exec 5> five; echo to5 >&5; exec 5>&-; cat five
exec 6<> f; read -r x <&6; echo "[$x]"; echo XX >&6; exec 6>&-; cat f; (echo sub; echo sub2) > s; { echo a; cat nosuch; } > both 2>&1 || true; sed 's/.*nosuch/nosuch/' both; rm both
echo p | tee t1 t2 | cat; set -C; ! echo no 2>/dev/null > f; set +C; : > f; wc -c f; for i in 1 2 3; do echo $i; done >> loop; cat loop; mapfile -t lines < loop; echo ${#lines[@]}
printf '%s\n' *; [ -f f ] && [ ! -s f ] && [ -d . ] && echo tests; sort < loop | (cat; echo end) > piped; cat piped; bash -c 'echo child >> loop'; cat loop; . ./loop 2>/dev/null || true; echo 'echo sourced' > src; . ./src; bash src; chmod +x src; ./src"#;
    same_as_local("bash-redir", script);
}

#[test]
fn bash_cd_and_pwd() {
    let script = r#"mkdir -p a/b/c; cd a; pwd; cd b/c; pwd; pwd -P; cd ../..; pwd; cd -; /bin/pwd; cd "$D"; ln -s a/b link; cd link; pwd; pwd -P; cd ..; pwd; cd "$D"/link/..; pwd -P
cd "$D"; (cd a; pwd; echo x > rel); cat a/rel; pushd a/b > /dev/null; dirs -l; popd > /dev/null; ! cd nosuch 2>/dev/null; cd /; ls "$D"; cd "$D"; sh -c pwd; cd a; env pwd; bash -c 'cd b; pwd; exec sh -c pwd'; cd "$S"; pwd; cd "$OLDPWD"; pwd
touch ./../top; ls ..; cd ./b//c/; pwd; cd ..; rmdir "$D"/a/b/c; pwd; ls -a"#;
    same_as_local("bash-cd", script);
}

/// Runs the program `tests/programs/NAME` with `interpreter`.
fn interpreted(name: &str, interpreter: &str) {
    let program = format!("{}/programs/{name}", env!("CARGO_MANIFEST_DIR"));
    same_as_local(name, &format!("{interpreter} {program} \"$INPUT\" \"$S\""));
}

#[test]
fn python3() {
    interpreted("files.py", "python3 -B");
}

#[test]
fn perl() {
    interpreted("files.pl", "perl");
}

#[test]
fn gcc() {
    let script = r#"cat > a.c <<'END'
#include <stdio.h>
#include "a.h"
int main(int argc, char **argv) { FILE *f = fopen("out", "w"); fprintf(f, "%s %d\n", argv[1], twice(argc)); fclose(f); return puts(HELLO) < 0; }
END
printf '#define HELLO "hello"\nint twice(int);\n' > a.h; printf '#include "a.h"\nint twice(int x) { return 2 * x; }\n' > b.c
gcc -O1 -g -c a.c; gcc -O1 -c b.c -o b.o; gcc a.o b.o -o prog; ./prog one; cat out; "$D"/prog two; cat out; ar rcs lib.a b.o; gcc a.c -L. -l:lib.a -o prog2; ./prog2 x y z; cat out
printf 'all: p\np: a.c b.c a.h\n\tgcc -pipe a.c b.c -o p\n' > Makefile; make; make; ./p w; rm -f prog* p *.o lib.a"#;
    same_as_local("gcc", script);
}

#[test]
fn git() {
    let script = r#"export HOME="$S" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
git init -q -b main r; cd r; mkdir headers; cp "$INPUT"/headers/[a-e]*.h headers; cp "$INPUT"/numbers .; git add -A; git commit -q -m one; git rev-parse HEAD; git status --short; echo more >> numbers; git diff --stat; git commit -qam two
git mv numbers n2; git commit -qm three; git log --oneline; git checkout -q -b side HEAD~1; echo s > side; git add side; git commit -qm side; git checkout -q main; git merge -q -m merged side; git rev-parse HEAD; cd ..
git clone -q r c; git clone -q --no-local r c2; git -C c2 rev-parse HEAD; git -C c fsck --full --strict --no-dangling; git -C c log --stat | tail -3; git -C r gc -q; git -C r fsck; git -C r rev-parse HEAD; diff -r --exclude=.git r c; rm -rf r c/.git c2"#;
    same_as_local("git", script);
}

#[test]
fn sqlite3_with_rollback_journal_and_two_writers() {
    let script = r#"sqlite3 d.db 'pragma journal_mode=delete; create table t(w text, n int);'
w() { for i in $(seq 1 60); do sqlite3 -cmd '.timeout 30000' d.db "begin immediate; insert into t values('$1', $i); insert into t values('$1', -$i); commit;"; done; }
w a & A=$!; w b & B=$!; wait $A; wait $B
sqlite3 d.db 'select w, count(*), sum(n) from t group by w order by w; pragma integrity_check;'; sqlite3 d.db 'begin; delete from t; rollback;'; sqlite3 d.db 'select count(*) from t; create index i on t(n); vacuum; select n from t where n > 58 order by n;'; ls
sqlite3 d.db '.dump' | sort | sha256sum; sqlite3 "$S"/copy.db < /dev/null; rm d.db"#;
    same_as_local("sqlite3", script);
}

#[test]
fn rsync_a() {
    let script = r#"rsync -a "$INPUT"/ tree/; rsync -aH --delete --checksum --itemize-changes "$INPUT"/ tree/ | grep -v '^\.d' || true; find tree -type f -printf '%P %m %T@ %s\n' | sort; echo changed >> tree/numbers; rm tree/one
rsync -a --delete "$INPUT"/ tree/; cmp "$INPUT"/numbers tree/numbers; rsync -a tree/ "$S"/out/; diff -r --no-dereference "$INPUT" "$S"/out; rsync -a --inplace tree/large tree/copy; rsync -a --partial tree/headers other/; ls other"#;
    same_as_local("rsync", script);
}

#[test]
fn fio_with_verify() {
    let script = r#"f() { fio --minimal --output="$S"/fio --name=j --directory=. --size=8m --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=5 "$@"; }
f --rw=write --bs=128k --ioengine=psync; f --rw=randwrite --bs=4k --ioengine=psync --filename=r; f --rw=randwrite --bs=8k --ioengine=sync --fsync=32 --filename=s; f --rw=randrw --bs=16k --ioengine=psync --filename=m --numjobs=2 --group_reporting --offset_increment=8m --size=4m
f --rw=write --bs=64k --ioengine=pvsync --filename=v; stat -c '%n %s' * | sort; rm *"#;
    same_as_local("fio", script);
}

#[test]
fn posix_asynchronous_io() {
    let source = format!("{}/c/aio.c", env!("CARGO_MANIFEST_DIR"));
    let script = format!(
        r#"gcc -O1 -Wall -Werror -o "$S"/p {source}; "$S"/p "$D"
fio --minimal --output="$S"/fio --name=j --directory=. --size=4m --bs=16k --rw=randwrite --ioengine=posixaio --iodepth=8 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=5 --filename=f; stat -c %s f; rm f *.state"#
    );
    same_as_local("aio", &script);
}

/// Compiles `tests/c/NAME.c` with `compiler` and runs it with four ranks. They talk through memory: by the network they would
/// choose a device that a network of another test may take away in that moment.
fn parallel(name: &str, compiler: &str, after: &str) {
    let source = format!("{}/c/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let script = format!(
        "cd \"$S\"; {compiler} -O2 {source} -o {name}; UCX_TLS=sm,self mpiexec.mpich -n 4 ./{name} \"$D\"; cd \"$D\"; ls -R; {after}"
    );
    same_as_local(name, &script);
}

#[test]
fn mpi_io() {
    // The bytes of these depend on the order in which ranks came; the program has checked them.
    parallel("mpiio", "mpicc.mpich", "rm mpiio/anyhow mpiio/atomic");
}

#[test]
fn parallel_hdf5() {
    parallel("hdf5", "h5pcc.mpich", ":");
}

#[test]
fn direct_writers_damage_nothing_while_files_are_truncated_removed_and_replaced() {
    let site = Site::new("direct");
    let program = format!("{}/programs/direct.py", env!("CARGO_MANIFEST_DIR"));
    for (seed, block) in [(1, "512K"), (2, "64K")] {
        let name = site.name(block);
        site.bivouac(["up", &name, "--servers", "4", "--block-size", block]).ok();
        let said = site.sh(&name, &format!("python3 -B {program} /bivouac/d 4 {seed}")).ok();
        assert_eq!(said, "whole\n");
    }
}

#[test]
fn what_one_process_changed_another_sees_at_once() {
    let site = Site::new("coherence");
    let name = site.up(4);
    let program = format!("{}/programs/coherence.py", env!("CARGO_MANIFEST_DIR"));
    for seed in [11, 12] {
        let said = site.sh(&name, &format!("python3 -B {program} /bivouac/seed{seed} 1500 {seed}")).ok();
        assert_eq!(said, "1500 rounds\n");
    }
}
