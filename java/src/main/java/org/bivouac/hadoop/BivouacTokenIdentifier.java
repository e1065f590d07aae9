package org.bivouac.hadoop;

import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.TokenIdentifier;

/** What everybody may know of a delegation token: for which deployment it is, whose, and since when. It is shown in logs. */
public final class BivouacTokenIdentifier extends TokenIdentifier {
    /** The kind of tokens that have such an identifier. */
    public static final Text KIND = new Text("BIVOUAC_DELEGATION_TOKEN");

    private String deployment;
    private String owner;
    private long issued;

    /** Called by Hadoop, which then reads the fields. */
    public BivouacTokenIdentifier() {
        this("", "", 0);
    }

    BivouacTokenIdentifier(String deployment, String owner, long issued) {
        this.deployment = deployment;
        this.owner = owner;
        this.issued = issued;
    }

    @Override
    public Text getKind() {
        return KIND;
    }

    @Override
    public UserGroupInformation getUser() {
        return owner.isEmpty() ? null : UserGroupInformation.createRemoteUser(owner);
    }

    @Override
    public void write(DataOutput out) throws IOException {
        Text.writeString(out, deployment);
        Text.writeString(out, owner);
        out.writeLong(issued);
    }

    @Override
    public void readFields(DataInput in) throws IOException {
        deployment = Text.readString(in);
        owner = Text.readString(in);
        issued = in.readLong();
    }

    @Override
    public String toString() {
        return "BivouacTokenIdentifier{" + deployment + ", " + owner + ", " + issued + "}";
    }
}
