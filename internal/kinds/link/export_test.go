package link

// Unpolice has the links believe that the kernel has refused to limit what they let in.
func (l *Links) Unpolice(err error) { l.asked.Do(func() { l.refused(err) }) }
