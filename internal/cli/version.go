package cli

import (
	"context"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/api/client"
	"github.com/berth-net/berth/internal/version"
)

// versionView is what `berth version -o json` prints.
type versionView struct {
	Berth    string `json:"berth"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Berthd   string `json:"berthd,omitempty"` // of the running agent
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program, and of the agent if it runs",
		Example: `  berth version`,
		RunE: func(c *cobra.Command, _ []string) error {
			v := versionView{Berth: version.Text, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			_ = a.ask(c.Context(), func(ctx context.Context, c *client.Client) error {
				st, err := c.Status(ctx, "")
				v.Berthd = st.Version // the status is complete also with an error that says that no pod can be attached
				return err
			})
			return a.print(v, func() {
				a.say("berth %s (%s, %s)\n", v.Berth, v.Platform, v.Go)
				if v.Berthd != "" {
					a.say("berthd %s\n", v.Berthd)
				}
			})
		},
	}
}
