import fcntl, os, sys, time, signal, struct, subprocess
p=sys.argv[1]+'/lockfile'
f=open(p,'w+b'); f.write(b'x'*100); f.flush()
def child(fn):
    pid=os.fork()
    if pid==0:
        try: fn(); os._exit(0)
        except SystemExit as e: os._exit(e.code)
        except BaseException as e:
            print('child', repr(e)); os._exit(99)
    return pid
def wait(pid):
    return os.waitpid(pid,0)[1]
# Byte-range locks of processes.
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
def try_():
    g=open(p,'r+b')
    try: fcntl.lockf(g, fcntl.LOCK_EX|fcntl.LOCK_NB, 10, 5); os._exit(1)
    except BlockingIOError: pass
    fcntl.lockf(g, fcntl.LOCK_EX|fcntl.LOCK_NB, 10, 10)
    r=fcntl.fcntl(g, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
    t=struct.unpack('hhqqi4x', r)
    assert t[0]==fcntl.F_WRLCK and t[2]==0 and t[3]==10 and t[4]==os.getppid(), t
assert wait(child(try_))==0
# blocking: gets it when parent unlocks
def block():
    g=open(p,'r+b'); t=time.time(); fcntl.lockf(g, fcntl.LOCK_EX, 10, 0); assert time.time()-t>0.3, time.time()-t
c=child(block); time.sleep(0.5)
os.listdir(sys.argv[1])
fcntl.lockf(f, fcntl.LOCK_UN); assert wait(c)==0
# interrupted by a signal
fcntl.lockf(f, fcntl.LOCK_EX)
def intr():
    g=open(p,'r+b')
    class A(Exception): pass
    def h(*a): raise A()
    signal.signal(signal.SIGALRM,h); signal.setitimer(signal.ITIMER_REAL,0.2); t=time.time()
    try: fcntl.lockf(g, fcntl.LOCK_EX); os._exit(1)
    except A: pass
    assert time.time()-t<0.4, time.time()-t
assert wait(child(intr))==0
# killed while waiting
def block2():
    g=open(p,'r+b'); fcntl.lockf(g, fcntl.LOCK_EX)
c=child(block2); time.sleep(0.2); t=time.time(); os.kill(c,9); assert wait(c)==9; assert time.time()-t<0.5
fcntl.lockf(f, fcntl.LOCK_UN)
# holder dies
def hold():
    g=open(p,'r+b'); fcntl.lockf(g, fcntl.LOCK_EX); time.sleep(100)
c=child(hold); time.sleep(0.2)
try: fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB); assert 0
except BlockingIOError: pass
os.kill(c,9); wait(c); t=time.time(); fcntl.lockf(f, fcntl.LOCK_EX); assert time.time()-t<1; fcntl.lockf(f,fcntl.LOCK_UN)
# closing any descriptor drops posix locks
fcntl.lockf(f, fcntl.LOCK_EX); open(p).close()
def t2():
    g=open(p,'r+b'); fcntl.lockf(g, fcntl.LOCK_EX|fcntl.LOCK_NB)
assert wait(child(t2))==0
# OFD
OFD_SETLK=37
def ofd(g,typ): fcntl.fcntl(g, OFD_SETLK, struct.pack('hhqqi4x', typ, 0, 0, 0, 0))
a=open(p,'r+b'); b=open(p,'r+b'); ofd(a, fcntl.F_WRLCK)
try: ofd(b, fcntl.F_WRLCK); assert 0
except BlockingIOError: pass
open(p).close()
try: ofd(b, fcntl.F_WRLCK); assert 0
except BlockingIOError: pass
a.close(); time.sleep(0.3); ofd(b, fcntl.F_WRLCK); b.close()
# flock
a=open(p,'r+b'); b=open(p,'r+b'); fcntl.flock(a, fcntl.LOCK_EX)
try: fcntl.flock(b, fcntl.LOCK_SH|fcntl.LOCK_NB); assert 0
except BlockingIOError: pass
fcntl.lockf(b, fcntl.LOCK_EX|fcntl.LOCK_NB)   # independent
d=os.dup(a.fileno()); a.close()
try: fcntl.flock(b, fcntl.LOCK_SH|fcntl.LOCK_NB); assert 0
except BlockingIOError: pass
os.close(d); time.sleep(0.3); fcntl.flock(b, fcntl.LOCK_SH|fcntl.LOCK_NB)
# deadlock
x=open(p,'r+b'); fcntl.lockf(x, fcntl.LOCK_EX, 1, 0)
def dead():
    g=open(p,'r+b'); fcntl.lockf(g, fcntl.LOCK_EX, 1, 50); fcntl.lockf(g, fcntl.LOCK_EX, 1, 0)
c=child(dead); time.sleep(0.3)
try: fcntl.lockf(x, fcntl.LOCK_EX, 1, 50); assert 0
except OSError as e: assert e.errno==35, e
fcntl.lockf(x, fcntl.LOCK_UN); assert wait(c)==0
print('locks ok')
