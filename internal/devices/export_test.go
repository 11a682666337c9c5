package devices

import "time"

// SetWithin has the kubelet answer sooner than Within.
func (l *Lister) SetWithin(d time.Duration) { l.within = d }
