use super::super::patch::apply;
use super::super::sites::Site;
use super::*;

/// Code: takes the call's number and three arguments as a C function, puts known values into vector
/// registers, does the call, and adds up what is left in them. 1 is added to the result for each register
/// that was changed.
fn code(number: u32) -> Vec<u8> {
    let mut code = Vec::new();
    // push rbx; movq xmm0, rdi; movq xmm15, rsi; mov rbx, rdx.
    code.extend([0x53, 0x66, 0x48, 0x0f, 0x6e, 0xc7, 0x66, 0x4c, 0x0f, 0x6e, 0xfe, 0x48, 0x89, 0xd3]);
    // mov [rsp - 8], rdi: the red zone.
    code.extend([0x48, 0x89, 0x7c, 0x24, 0xf8]);
    code.push(0xb8);
    code.extend(number.to_le_bytes());
    code.extend([0x0f, 0x05]);
    // Each: compare, setne cl, movzx ecx, cl; add rax, rcx. First what is in the red zone.
    let add = [0x0f, 0x95, 0xc1, 0x0f, 0xb6, 0xc9, 0x48, 0x01, 0xc8];
    code.extend([0x48, 0x39, 0x7c, 0x24, 0xf8]);
    code.extend(add);
    // movq r8, xmm0; cmp r8, rdi.
    code.extend([0x66, 0x49, 0x0f, 0x7e, 0xc0, 0x49, 0x39, 0xf8]);
    code.extend(add);
    // movq r8, xmm15; cmp r8, rsi.
    code.extend([0x66, 0x4d, 0x0f, 0x7e, 0xf8, 0x49, 0x39, 0xf0]);
    code.extend(add);
    // cmp rbx, rdx; pop rbx; ret.
    code.extend([0x48, 0x39, 0xd3]);
    code.extend(add);
    code.extend([0x5b, 0xc3]);
    code
}

/// Where in it the number is loaded.
const LOAD: usize = 19;

/// Makes the call through a patched site.
fn through_the_gate(number: u32, args: [usize; 3]) -> isize {
    prepare().unwrap();
    let code = code(number);
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a fresh page, filled with a function, which follows C's convention.
    unsafe {
        let page =
            libc::mmap(std::ptr::null_mut(), 4096, all, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
        let start = page as usize;
        let moved = start + LOAD..start + LOAD + 5;
        let bytes = std::slice::from_raw_parts(moved.start as *const u8, 5).to_vec();
        apply(start..start + code.len(), &[Site { moved, bytes, padding: None }], address()).unwrap();
        let function: extern "C" fn(usize, usize, usize) -> isize = std::mem::transmute(page);
        function(args[0], args[1], args[2])
    }
}

#[test]
fn a_call_that_passes_gets_the_kernels_answer_and_all_registers_stay() {
    // One of a kind that passes by its number, one by its descriptor, and some that ask the door. (Arguments
    // that differ.)
    let pid = through_the_gate(libc::SYS_getppid as u32, [11, 22, 33]);
    assert_eq!(pid, std::os::unix::process::parent_id() as isize);
    let missing = (-1isize as usize, -(libc::EBADF as isize));
    assert_eq!(through_the_gate(libc::SYS_fsync as u32, [missing.0, 22, 33]), missing.1);
    assert_eq!(through_the_gate(libc::SYS_fsync as u32, [987_654, 22, 33]), missing.1);
    assert_eq!(through_the_gate(libc::SYS_close as u32, [987_654, 22, 33]), missing.1);
    let path = c"/nosuchfile";
    let absent = -(libc::ENOENT as isize);
    assert_eq!(through_the_gate(libc::SYS_open as u32, [path.as_ptr() as usize, 0, 33]), absent);
    assert_eq!(through_the_gate(libc::SYS_unlink as u32, [path.as_ptr() as usize, 22, 33]), absent);
}
