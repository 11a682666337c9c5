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

// Unable has this program be no helper until back is called.
func Unable() (back func()) {
	able = false
	return func() { able = true }
}
