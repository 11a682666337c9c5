package helper

// Patience is how long a process may take to receive a message.
var Patience = &patience

// Pid returns the process that runs; 0: none does.
func (h *Helper) Pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life == nil {
		return 0
	}
	return h.life.cmd.Process.Pid
}

// Probes returns how many probes the process has answered.
func (h *Helper) Probes() uint64 {
	h.mu.Lock()
	l := h.life
	h.mu.Unlock()
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

// Over reports whether nobody hears the process any more.
func (h *Helper) Over() bool {
	h.mu.Lock()
	l := h.life
	h.mu.Unlock()
	return l.over()
}

// Asking reports whether a timer runs for the next probe. It stops the timer.
func (h *Helper) Asking() bool {
	h.mu.Lock()
	l := h.life
	h.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asking.Stop()
}

// LostError is Send's error for a message of which nobody knows what became of it.
type LostError = lostError

// Unable has this program be no helper until back is called.
func Unable() (back func()) {
	able = false
	return func() { able = true }
}
