package link

// Last returns where a link was when this agent heard that it is deleted; else 0.
func (l *Links) Last(name string) int { return l.memory.last(name) }
