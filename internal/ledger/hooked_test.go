package ledger

import "os"

// hooked is a volume that calls a test's hooks: before it does something or, for writes,
// afterwards. A hook that is nil is not called.
type hooked struct {
	local
	creates func(path string)
	renames func(from string) error
	links   func(to string) error
	syncs   func(path string)            // a file, before the sync is done
	datas   func(path string)            // a file, before its data are synced
	punches func(path string) error      // a file, before a hole is made in it
	writes  func(path string, err error) // a file, after a write
	folder  func(path string) error      // a folder, before its sync
}

func (v *hooked) open(path string, flag int) (file, error) {
	if flag&os.O_EXCL != 0 && v.creates != nil {
		v.creates(path)
	}
	f, err := v.local.open(path, flag)
	if err != nil {
		return nil, err
	}
	return &hookedFile{f.(diskFile), v}, nil
}

func (v *hooked) rename(from, to string) error {
	if v.renames != nil {
		if err := v.renames(from); err != nil {
			return err
		}
	}
	return v.local.rename(from, to)
}

func (v *hooked) link(from, to string) error {
	if v.links != nil {
		if err := v.links(to); err != nil {
			return err
		}
	}
	return v.local.link(from, to)
}

func (v *hooked) syncDir(path string) error {
	if v.folder != nil {
		if err := v.folder(path); err != nil {
			return err
		}
	}
	return v.local.syncDir(path)
}

type hookedFile struct {
	diskFile
	vol *hooked
}

func (f *hookedFile) Sync() error {
	if f.vol.syncs != nil {
		f.vol.syncs(f.Name())
	}
	return f.diskFile.Sync()
}

func (f *hookedFile) Datasync() error {
	if f.vol.datas != nil {
		f.vol.datas(f.Name())
	}
	return f.diskFile.Datasync()
}

func (f *hookedFile) Punch(at, n int64) error {
	if f.vol.punches != nil {
		if err := f.vol.punches(f.Name()); err != nil {
			return err
		}
	}
	return f.diskFile.Punch(at, n)
}

func (f *hookedFile) WriteAt(b []byte, at int64) (int, error) {
	n, err := f.diskFile.WriteAt(b, at)
	if f.vol.writes != nil {
		f.vol.writes(f.Name(), err)
	}
	return n, err
}
