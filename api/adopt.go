package api

// AdoptRequest asks the agent to adopt the pods that a former CNI of the node has attached (POST /v1/adopt).
type AdoptRequest struct {
	DryRun  bool     `json:"dryRun,omitempty"`  // change nothing, only say what would be adopted
	BinDirs []string `json:"binDirs,omitempty"` // absolute paths of the folders of the former CNI's plugins; none: /opt/cni/bin
	CNIDirs []string `json:"cniDirs,omitempty"` // absolute paths below the agent's root: more folders in which Multus may have kept files (its cniDir)
}

// Adopted says what an agent has found of a former CNI, and what became of it.
type Adopted struct {
	Attachments []AdoptedAttachment `json:"attachments"`
	Problems    []AdoptProblem      `json:"problems"` // files, or parts of files, whose attachments were not adopted
}

// AdoptedAttachment is an attachment that a former CNI has made.
type AdoptedAttachment struct {
	Outcome     string   `json:"outcome"`      // one of Outcomes
	ID          string   `json:"id,omitempty"` // of the attachment in the ledger; "": it is not there, as after a dry run
	Pod         *Pod     `json:"pod,omitempty"`
	ContainerID string   `json:"containerID"`
	Ifname      string   `json:"ifname"`
	Network     string   `json:"network"` // as the former CNI's configuration calls it
	Plugins     []string `json:"plugins"` // types, in the order of ADD
}

// AdoptProblem is a file of a former CNI that tells of something which the agent did not adopt.
type AdoptProblem struct {
	Path   string `json:"path"` // below the agent's root
	Reason string `json:"reason"`
}

// Outcomes of an adoption.
const (
	OutcomeAdopted = "adopted" // the pod keeps its network, and its DEL is the agent's from now on
	OutcomeGone    = "gone"    // the pod's network namespace is gone: the agent adopts the attachment and gives back at once what is left
	OutcomeKnown   = "known"   // the ledger has it already
)

// Outcomes lists what may become of an attachment in an adoption.
func Outcomes() []string { return []string{OutcomeAdopted, OutcomeGone, OutcomeKnown} }
