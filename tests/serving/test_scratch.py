import time
from tests.serving.live import *
def test_up(live):
    print("UP", live.decide())
    for t in (GATEWAY,TOY,CONTROLLER): print(t, live.process(t))
    print([ (p.pid,p.cmdline()[0]) for p in processes("ray::")])
    print(os.popen("ss -ltnp | grep -E 'pid=(%s),'" % "|".join(str(p.pid) for p in processes("ray::"))).read())
