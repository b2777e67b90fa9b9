/* Limit how often something is loaded, however many events ask for it. */

const PAUSE_MS = 1000;

/* Return a function that runs `work` at most once per `pauseMs`: at once after a quiet time, otherwise at the end of
 * the pause. Two runs never overlap; a call during a run causes one more run after it. */
export function throttled(work, pauseMs = PAUSE_MS) {
  let lastStart = 0;
  let timer = null;
  let running = false;
  let calledWhileRunning = false;

  async function run() {
    timer = null;
    running = true;
    lastStart = Date.now();
    try {
      await work();
    } finally {
      running = false;
      if (calledWhileRunning) {
        calledWhileRunning = false;
        call();
      }
    }
  }

  function call() {
    if (running) calledWhileRunning = true;
    else if (timer === null) timer = setTimeout(run, Math.max(0, lastStart + pauseMs - Date.now()));
  }

  call.stop = () => clearTimeout(timer);
  return call;
}
